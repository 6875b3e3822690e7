"""A federation of three sites of which one is killed, frozen or cut off at a chosen step of its exchange.

The steps are read off the site's own requests to the SuperLink, and the request is held until the fault is there.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault_federation import FaultFederation, lines_in, until
from federation import words_of
from relay import Relay
from small import SMALL

from server_app.record import Record

SITES = ("north", "south", "west")
STRUCK = "west"

#: seconds that a fault lasts where no round can show that it has been noticed
LASTS = 20.0
BEFORE_ROUND_1 = ("asked", "answering")

#: what may be said of the struck site's part of the round
SENTENCES = {
    "the node is unavailable",
    "the node went away while it sent its reply",
    "the device's process stopped responding",
    "this site's state cannot be written (Not a directory): free some space there",
}


@dataclass(frozen=True)
class Step:
    """The ``count``-th request ``request`` behind the ``replies``-th reply that the site began."""

    what: str
    replies: int
    request: str
    count: int = 1
    later: float = (
        0.0  # seconds by which the fault comes behind the request, which is then not held
    )


#: reply 1 answers the roll call, reply 2 is round 1's, reply 3 round 2's
STEPS = {
    "asked": Step("the roll call is being fetched", 0, "pull-object"),
    "answering": Step("its answer to the roll call begins", 1, "push-messages"),
    "fetching": Step("round 2's instruction is being fetched", 2, "pull-object"),
    "fetched": Step("the instruction is there", 2, "confirm-message-received"),
    "working": Step("while its ClientApp runs", 2, "confirm-message-received", later=2.0),
    "replying": Step("its reply begins", 3, "push-messages"),
    "half-way": Step("half-way through its reply", 3, "push-object", 4),
    "idle": Step("between two rounds", 3, "pull-messages"),
}
FAULTS = ("kill -9", "SIGSTOP", "cut")

#: what befalls what a site runs and keeps, and when
WITHIN = (("its ClientApp dies", "working"), ("its state is a file", "fetched"))


class Trigger:
    """Hears a site's requests, and strikes at the step that it waits for, once."""

    def __init__(self, step: Step, rounds: Callable[[], int]) -> None:
        self.step = step
        self._rounds = rounds  # how many rounds' instructions the site has received
        self.strike: Callable[[], None] | None = None
        self.struck = False
        self._replies = 0
        self._since: Counter[str] = Counter()

    def __call__(self, request: str) -> None:
        """Count ``request``; bring the fault about before it is passed on, if it is the one."""
        if request == "push-messages":
            self._replies = 1 + self._rounds()
            self._since.clear()
        self._since[request] += 1
        here = (self._replies, request, self._since[request])
        awaited = (self.step.replies, self.step.request, self.step.count)
        if self.strike and not self.struck and here == awaited:
            if self.step.later:
                threading.Timer(self.step.later, self._bring_about).start()
            else:
                self._bring_about()

    def _bring_about(self) -> None:
        if self.strike:
            self.strike()
            self.struck = True


@dataclass
class Row:
    """What became of a run whose site was struck."""

    record: Record
    noticed: float  # seconds from the fault until a round had gone on without the site, or with it
    back: float  # from the mending until a round had all three sites
    ended: bool
    said: str
    kept: set[tuple[str, int]]

    @property
    def rejected(self) -> dict[int, str]:
        """The struck site's rounds that were asked for and came to nothing, with their reasons."""
        lines = self.record.metrics()
        return {n["round"]: n["rejected"][STRUCK] for n in lines if STRUCK in n["rejected"]}

    def __str__(self) -> str:
        lost = ", ".join(f"round {r}: {reason}" for r, reason in self.rejected.items()) or "nothing"
        return f"{self.noticed:.0f} s | {self.back:.0f} s | {lost}"


def config_of(directory: Path) -> dict[str, Any]:
    settings = (
        f"{SMALL} feddm.start=noise feddm.warm=on feddm.iterations=200 federation.min_replies=2"
    )
    return {"rounds": 200, "output-dir": str(directory / "runs"), "set": settings}


def run_fault(directory: Path, fault: str, step: str) -> Row:
    """Run until the struck site is back in a round with all three."""
    directory.mkdir()
    nodes = {s: f"site='{s}' partition-id={i} num-partitions=3" for i, s in enumerate(SITES)}
    output, kept = directory / "runs", set[tuple[str, int]]()

    def lines() -> list[dict[str, Any]]:
        versions = (directory / "state").rglob("0*.safetensors")
        kept.update((p.parents[2].name, int(p.stem)) for p in versions)
        return lines_in(output)

    federation = FaultFederation(directory, nodes)
    trigger = Trigger(STEPS[step], lambda: rounds_at(federation))
    with federation, Relay(federation.port, trigger) as relay:
        federation.ports[STRUCK] = relay.port
        trigger.strike, mend = means(federation, relay)[fault]
        federation.start(*SITES)
        submitted = federation.submit_words("submit", *words_of(config_of(directory)))
        until(lambda: trigger.struck, step, while_runs=submitted)
        begun, before = time.monotonic(), len(lines())
        if fault == "kill -9" or step in BEFORE_ROUND_1:
            time.sleep(0 if fault == "kill -9" else LASTS)
            mend()

        def noticed() -> bool:
            return len(lines()) >= before + 2 or any(STRUCK in n["rejected"] for n in lines())

        until(noticed, "the run going on", while_runs=submitted)
        seconds, last = time.monotonic() - begun, lines()[-1]["round"]
        mend()
        back = until(
            lambda: lines()[-1]["round"] > last and len(lines()[-1]["accepted"]) == len(SITES),
            "a round with all three",
            while_runs=submitted,
        )
        (found,) = output.iterdir()
        ended = submitted.poll() is not None
        return Row(Record(found), seconds, back, ended, federation.log("submit"), kept)


def rounds_at(federation: FaultFederation) -> int:
    """Return the newest round whose instruction the struck site has received; 0 behind the roll call alone."""
    rounds = re.findall(r"ROUND (\d+)]", federation.log(STRUCK))
    return max(map(int, rounds), default=0)


def means(
    federation: FaultFederation, relay: Relay
) -> dict[str, tuple[Callable[[], None], Callable[[], None]]]:
    """Return how each fault is brought about, and how it is mended; to mend twice is to mend once."""
    killed: list[str] = []
    moved: list[Path] = []

    def replace_state() -> None:
        (place,) = (federation.directory / "state").glob(f"2*/{STRUCK}")
        moved.append(place.rename(place.with_name(f"{STRUCK}.away")))
        place.touch()

    def put_back_state() -> None:
        while moved:
            away = moved.pop()
            (place := away.with_suffix("")).unlink()
            away.rename(place)

    def kill() -> None:
        federation.kill(STRUCK)
        killed.append(STRUCK)

    def start_again() -> None:
        while killed:
            federation.start(killed.pop())

    return {
        "kill -9": (kill, start_again),
        "SIGSTOP": (lambda: federation.freeze(STRUCK), lambda: federation.thaw(STRUCK)),
        "cut": (relay.cut, relay.heal),
        "its ClientApp dies": (
            lambda: federation.kill_app(STRUCK, "flwr-clientapp"),
            lambda: None,
        ),
        "its state is a file": (replace_state, put_back_state),
    }
