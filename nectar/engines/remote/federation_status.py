"""How a federation stands: its sites by name, and the runs at its SuperLink, as Flower's own lists and logs tell."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nectar.engines.flower.connection import Connection
from nectar.engines.flower.log import plain
from nectar.engines.flower.marked_lines import is_marked, marked_content
from strategies.exchange.membership import SILENT

if TYPE_CHECKING:
    from nectar.engines.flower.superlink import Node, Run, SuperLink

#: Flower's word for a node that may not come back
_GONE = "unregistered"

#: the server's line about a site whose owner has not approved a run: at its beginning, which no site writes
_WAITS = re.compile(
    r"(?:WARNING\s*:\s+)?(?:(?:node \d+ is )?left out: )?"
    r"(?:[^():]{1,64} \()?node (?P<node>\d+)\)? is not approved yet: (?P<said>.*)"
)

#: characters of what a site says that are shown
_SAID = 200

#: runs whose logs are read at most
_READ = 4


@dataclass
class RunStatus:
    """A run that is not over, as far as its log has told.

    Attributes
    ----------
    run : str
        Its number.
    status : str
        Flower's: pending, starting or running.
    seconds : float
        For which it is running.
    reached, rounds : int
        The last round that ended, and how many there are to be; -1 and 0 before the first line of a round.
    left : float
        Seconds that the server expected, after that round, until the end; 0 where it does not know.
    record : str
        The record's directory at the server; empty if there is none yet.
    nodes : dict
        Who takes part: from the site's name to its node's number.
    silent : tuple of str
        The numbers of nodes that are online and have not answered the roll call.
    waiting : dict of str to str
        The numbers of nodes whose owners have not approved it, and what their sites say of that.
    last : str
        The last line of its log.
    figures : dict
        Of the newest round that has a line: ``round``, ``accuracy`` by the server's test set, ``replies`` by outcome,
        ``bytes`` by way, ``seconds``, the largest ``epsilon`` that a site was charged until then (or None), and the
        bytes that are ``free`` where the record lies.
    """

    run: str = ""
    status: str = ""
    seconds: float = 0.0
    reached: int = -1
    rounds: int = 0
    left: float = 0.0
    record: str = ""
    nodes: Mapping[str, str] | None = None
    silent: tuple[str, ...] = ()
    waiting: dict[str, str] = field(default_factory=dict)
    last: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)

    def see(self, line: str) -> None:
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
        elif silent := silent_in(text):
            self.silent = silent
        if waits := _WAITS.match(text):
            self.waiting[waits["node"]] = waits["said"][:_SAID]
        if text and not is_marked(text):
            self.last = text


@dataclass(frozen=True)
class SiteStatus:
    """A registered site.

    Attributes
    ----------
    site : str
        Its name; empty if it has none.
    node : str
        Its node's number.
    status : str
        Flower's: registered (it never came), online or offline.
    since : str
        Since when it is online, or when it was seen last, UTC; empty if it never came.
    run : str
        The run in which it takes part; empty for none.
    work : str
        What is known of its part in that run: ``round N``, the one that goes on, ``waits for approval``,
        ``silent``, ``roll call``, or nothing.
    """

    site: str
    node: str
    status: str
    since: str
    run: str = ""
    work: str = ""


@dataclass(frozen=True)
class FederationStatus:
    """The federation now."""

    sites: list[SiteStatus]
    runs: list[RunStatus]

    @property
    def well(self) -> bool:
        """Whether there is a site and each is online."""
        return bool(self.sites) and all(site.status == "online" for site in self.sites)


def federation_status(connection: Connection) -> FederationStatus:
    """Ask a SuperLink for its nodes and runs, and read the logs of those that are not over.

    A run tells the names under which its sites answered, which stand over those that they were registered under.

    Raises
    ------
    LaunchError
        The SuperLink does not answer.
    """
    with connection.superlink() as superlink:
        nodes = superlink.nodes()
        going = [run for run in superlink.runs() if not run.finished]
        runs = [_progress(superlink, run) for run in going[:_READ]]
    return FederationStatus(_members(nodes, runs), runs)


def _progress(superlink: SuperLink, listed: Run) -> RunStatus:
    run = RunStatus(listed.number, listed.status, listed.seconds)
    if run.status == "running":
        _, log = next(superlink.log(run.run), (0.0, ""))  # all that it has logged until now
        for line in log.splitlines():
            run.see(line)
    return run


def _members(nodes: list[Node], runs: list[RunStatus]) -> list[SiteStatus]:
    site_by_node = {node: site for run in runs for site, node in (run.nodes or {}).items()}
    members = []
    for node in nodes:
        if node.status == _GONE:
            continue
        site = site_by_node.get(node.number, node.name)
        run, work = _work(node.number, runs)
        members.append(SiteStatus(site, node.number, node.status, node.since, run, work))
    return sorted(members, key=lambda member: (not member.site, member.site, member.node))


def _work(node: str, runs: list[RunStatus]) -> tuple[str, str]:
    for run in runs:
        if node in run.waiting:
            return run.run, "waits for approval"
        if node in run.silent:
            return run.run, "silent"
        if node in (run.nodes or {}).values():
            if not run.rounds:
                return run.run, "roll call"
            # After the last round sites may still be asked what its weights are worth.
            return run.run, f"round {min(max(1, run.reached + 1), run.rounds)}"
    return "", ""


def silent_in(line: str) -> tuple[str, ...]:
    """Return the numbers of the nodes of which a line of a log has that clause."""
    return tuple(re.findall(r"\bnode (\d+)", line.partition(SILENT)[2]))
