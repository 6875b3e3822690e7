"""The nodes and runs of a SuperLink, from its lists and from the runs' logs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from common.sites import SILENT
from nectar.engines.flower.connection import Connection
from nectar.engines.flower.log import is_marked, marked_content, plain

UNREGISTERED, REGISTERED = "unregistered", "registered"
"""Flower's words for a node that may not come back, and for one that has never come."""

#: the server's line about a site whose owner has not approved a run: at its beginning, which no site writes
_NOT_APPROVED = re.compile(
    r"(?:WARNING\s*:\s+)?(?:(?:node \d+ is )?left out: )?"
    r"(?:[^():]{1,64} \()?node (?P<node>\d+)\)? waits for its owner's approval: (?P<reason>.*)"
)

#: characters of a site's reason that are shown, and runs whose logs are read at most
_REASON, _RUNS_READ = 200, 4


@dataclass(frozen=True)
class Node:
    """A site's SuperNode.

    Attributes
    ----------
    site : str
        The name under which it was registered, or answered the run in which it takes part; empty if it has none.
    node : str
        Its number.
    status : str
        Flower's: registered (it never came), online, offline or unregistered.
    since : str
        Since when it is online, or when it was seen last, UTC; empty if it never came.
    fingerprint : str
        Of its public key, as ``ssh-keygen -l`` prints it.
    run : str
        The run in which it takes part; empty for none.
    work : str
        What is known of its part in that run: ``round N`` in progress, ``waits for approval``, ``silent``,
        ``roll call``, or nothing.
    """

    site: str
    node: str
    status: str
    since: str = ""
    fingerprint: str = ""
    run: str = ""
    work: str = ""


@dataclass
class Run:
    """A run as the SuperLink lists it, with the facts from the part of its log that was read.

    Attributes
    ----------
    run : str
        Its number.
    status : str
        Flower's: pending, starting, running, or finished: with completed, failed or stopped after the colon.
    details : str
        Why it failed; empty if Flower does not say.
    seconds : float
        For which it is or was running.
    reached, rounds : int
        The last round that ended, and how many there are to be; -1 and 0 before the first line of a round.
    left : float
        Seconds that the server expected, after that round, until the end; 0 where it does not know.
    record : str
        The record's directory at the server; empty before it is made.
    nodes : dict
        Who takes part: from the site's name to its node's number.
    silent : tuple of str
        The numbers of nodes that are online and have not answered the roll call.
    waiting : dict of str to str
        The numbers of nodes whose owners have not approved it, and the reasons that their sites give.
    last : str
        The last line of its log.
    figures : dict
        Of the newest round that has a line: ``round``, ``accuracy`` by the server's test set, ``replies`` by outcome,
        ``bytes`` by way, ``seconds``, the largest ``epsilon`` that a site was charged until then (or None), and the
        bytes that are ``free`` on the record's disk.
    """

    run: str
    status: str = ""
    details: str = ""
    seconds: float = 0.0
    reached: int = -1
    rounds: int = 0
    left: float = 0.0
    record: str = ""
    nodes: Mapping[str, str] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    waiting: dict[str, str] = field(default_factory=dict)
    last: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether the run has ended."""
        return self.status.startswith("finished:")

    @property
    def completed(self) -> bool:
        """Whether the run has completed."""
        return self.status == "finished:completed"

    @property
    def reason(self) -> str:
        """A sentence that states why the run did not complete."""
        why = self.details or "Flower gives no reason"
        return f"The run did not complete ({self.status.partition(':')[2]}): {why}"

    def read(self, line: str) -> None:
        """Read one more line of the log."""
        text = plain(line).strip()
        if found := marked_content(text, "sites"):
            self.nodes, self.silent, self.waiting = dict(found.get("nodes", {})), (), {}
        elif found := marked_content(text, "record"):
            self.record = self.record or str(found.get("directory", ""))
        elif found := marked_content(text, "round"):
            self.reached, self.rounds = int(found.get("reached", -1)), int(found.get("of", 0))
            figures, left = found.get("figures"), found.get("left")
            self.figures = figures if isinstance(figures, dict) else {}
            self.left = left if isinstance(left, float) and math.isfinite(left) else 0.0
        elif silent := re.findall(r"\bnode (\d+)", text.partition(SILENT)[2]):
            self.silent = tuple(silent)
        if waits := _NOT_APPROVED.match(text):
            self.waiting[waits["node"]] = waits["reason"][:_REASON]
        if text and not is_marked(text):
            self.last = text

    def work_of(self, node: str) -> str:
        """Return a node's state in the run; empty if it does not take part."""
        if node in self.waiting:
            return "waits for approval"
        if node in self.silent:
            return "silent"
        if node not in self.nodes.values():
            return ""
        # After the last round sites may still be asked what its weights are worth.
        return f"round {min(max(1, self.reached + 1), self.rounds)}" if self.rounds else "roll call"


def federation_status(connection: Connection) -> tuple[list[Node], list[Run]]:
    """Return a SuperLink's registered nodes, and its unfinished runs with the facts from their logs.

    Raises
    ------
    LaunchError
        The SuperLink does not answer.
    """
    with connection.superlink() as superlink:
        nodes = [node for node in superlink.nodes() if node.status != UNREGISTERED]
        runs = [run for run in superlink.runs() if not run.finished][:_RUNS_READ]
        for run in runs:
            if run.status == "running":
                _, log = next(superlink.log(run.run), (0.0, ""))  # all that it has logged until now
                for line in log.splitlines():
                    run.read(line)
    found = [_with_work(node, runs) for node in nodes]
    return sorted(found, key=lambda node: (not node.site, node.site, node.node)), runs


def _with_work(node: Node, runs: list[Run]) -> Node:
    """Return a node with its work in the first run that involves it, and its name in the last one."""
    answered = [site for run in runs for site, number in run.nodes.items() if number == node.node]
    at_work = next((run for run in runs if run.work_of(node.node)), Run(""))
    site = answered[-1] if answered else node.site
    return replace(node, site=site, run=at_work.run, work=at_work.work_of(node.node))
