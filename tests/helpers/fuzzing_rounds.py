"""Sequences of rounds with one hostile site, of every method: what was accepted must not be ruinous later.

A sequence is a run of three or four rounds by four or five sites, one of which spoils its replies (`spoiling`). After
each round all that stays is looked at: the weights, what the strategy would write, what honest sites remember. Then
the run is continued from its last checkpoint with all sites honest. What has to hold:

- the run ends by itself, since the honest sites are more than the quorum, and so does its continuation;
- no honest site is rejected, in no round;
- what stays is finite, and at most ``WITHIN`` times as large as in a run of honest sites.

The suite does some of it; all of it is

    python tests/helpers/fuzzing_rounds.py --sequences 2000 --seed 0

A sequence is drawn from the seed and its own number, so that ``--first N --sequences 1`` does one again.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array

sys.path.insert(0, str(Path(__file__).parents[2]))

from federation import TamperedGrid
from spoiling import Hostile

from client_app.app import app as client_app
from client_app.state import DirectoryState
from common.config.loading import load
from common.sites import Site
from nectar.engines.local_grid import LocalGrid
from nectar.records.outputs import with_recorded
from server_app.app import Observer, serve
from server_app.checkpoint import Checkpoint
from server_app.record import Record
from server_app.run_directory import RunDirectory
from tests.contract.cases import CASES as ROWS
from tests.contract.cases import config_of

#: how often the size in a run of honest sites what stays may have, and a size that counts as usual whatever they have
WITHIN, USUAL = 1e4, 1e-2

#: rounds by which a run is continued
MORE = 1

CASES = tuple(
    (case.method, case.words) for case in ROWS if case.method not in ("central", "server", "ridge")
)
"""The contract's cases: methods with settings that make them short."""


# ---- what stays after a round -------------------------------------------------------------------------


def leaves(found: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the tensors, numbers and texts of what a strategy keeps, by their path; sites' names are all alike."""
    if isinstance(found, Mapping):
        for key, value in found.items():
            yield from leaves(value, f"{path}/{re.sub(r'partition-[0-9]+', 'SITE', str(key))}")
    elif isinstance(found, list | tuple | set | frozenset):
        for value in found:
            yield from leaves(value, f"{path}/*")
    else:
        yield path, found


def sizes_of(found: Any, path: str) -> Iterator[tuple[str, float]]:
    """Yield the largest magnitude of the numbers at each path, NaN where one is not a number."""
    for where, value in leaves(found, path):
        if isinstance(value, str | bool) or value is None:
            continue
        held = value.numpy() if isinstance(value, Array) else value
        flat = torch.as_tensor(held).flatten()
        if len(flat) and flat.dtype != torch.uint8:  # a byte is as large as it may be
            flat = flat.double().abs()
            yield where, float("nan") if flat.isnan().any() else float(flat.max())


def sizes_after(record: RunDirectory, honest: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yield the sizes of all that stays of the round that was just done."""
    kept = Checkpoint.load(record.last)
    yield from sizes_of(kept.weights, "weights")
    yield from sizes_of(kept.strategy, "strategy")
    for site in honest:
        memory = DirectoryState(record.directory / "state", "", site)
        for number in memory.rounds()[-1:]:
            yield from sizes_of(memory.load(number), "memory")


@dataclass
class Seen(Observer):
    """What was seen after the rounds of a run."""

    honest: Sequence[str]
    record: RunDirectory = field(default_factory=lambda: RunDirectory(Path()))
    sizes: dict[str, float] = field(default_factory=dict)
    by_round: list[dict[str, float]] = field(default_factory=list)

    def begun(self, record: RunDirectory, sites: Sequence[Site]) -> None:
        """Take the record."""
        self.record = record

    def round_done(self, server_round: int, rounds: int, sites: Sequence[Site]) -> None:
        """Look at what stays."""
        if not self.record.last.is_file():
            return
        now: dict[str, float] = {}
        for path, size in sizes_after(self.record, self.honest):
            now[path] = max(now.get(path, 0.0), size) if size == size else size
        self.by_round.append(now)


def run_seen(config: Mapping[str, Any], grid: LocalGrid, seen: Seen) -> Record:
    """Run ``config`` to its end, and look at what stays of each round."""
    return serve(grid, load(config), seen)


@lru_cache(maxsize=256)
def usual_sizes(method: str, words: str, sites: int) -> Mapping[str, float]:
    """Return the largest sizes by path in a run of honest sites."""
    seen = Seen([f"partition-{i}" for i in range(sites)])
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(method, words, sites, 4 + MORE, folder)
        lines = run_seen(config, LocalGrid(client_app, sites, config), seen).metrics()
    assert not any(line["rejected"] for line in lines), lines[-1]["rejected"]
    largest: dict[str, float] = {}
    for now in seen.by_round:
        for path, size in now.items():
            assert np.isfinite(size), f"{method}: {path} of honest sites is {size}"
            largest[path] = max(largest.get(path, 0.0), size)
    return largest


# ---- a sequence ---------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What became of the sequences."""

    spoiled: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    sequences: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    worst: dict[str, tuple[float, str]] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return the tally as text."""
        rows = [
            f"{way}: {self.spoiled[way]} rounds, {self.rejected[way]} of them rejected"
            for way in sorted(self.spoiled)
        ]
        worst = sorted(self.worst.items(), key=lambda item: -item[1][0])[:12]
        return [
            f"{sum(self.sequences.values())} sequences of {len(self.sequences)} methods",
            *rows,
            *(
                f"{name}: {times:.3g} times the usual size, {where}"
                for name, (times, where) in worst
            ),
            f"failures: {len(self.failures)}",
        ]


class RoundsFuzzer:
    """Draws sequences, has them run, and judges what comes of it."""

    def __init__(self, seed: int, tell: Callable[[str], object]) -> None:
        self.seed, self._tell = seed, tell
        self.tally = Tally()

    def sequence(self, number: int) -> None:
        """Do one sequence."""
        draw = np.random.default_rng([self.seed, number])
        method, words = CASES[number % len(CASES)]
        sites, rounds = int(draw.integers(4, 6)), int(draw.integers(3, 5))
        bad = int(draw.integers(sites))
        hostile, name = Hostile(draw), f"partition-{bad}"
        self.tally.sequences[method] += 1
        message: list[str] = []
        with tempfile.TemporaryDirectory() as folder:
            config = config_of(method, words, sites, rounds, folder)
            try:
                message = self._done(config, hostile, name, sites, (method, words))
            except Exception as error:
                trace = traceback.format_exc(limit=-3)
                message = [f"ended: {type(error).__name__}: {error}"]
                message += [trace] if type(error).__name__ not in _DECLARED else []
        if message:
            about = f"sequence {number} ({method} {words.format(method).strip()}, {sites} sites, "
            about += f"{name} did: {'; '.join(hostile.did)})"
            self.tally.failures.append(f"{about}: {' | '.join(message)}")
            self._tell(self.tally.failures[-1])

    def _done(
        self,
        config: Mapping[str, Any],
        hostile: Hostile,
        name: str,
        sites: int,
        case: tuple[str, str],
    ) -> list[str]:
        """Return what is wrong with a sequence."""
        usual = usual_sizes(*case, sites)
        honest = [f"partition-{i}" for i in range(sites) if f"partition-{i}" != name]
        seen = Seen(honest)
        bad = int(name.removeprefix("partition-"))
        grid = TamperedGrid(client_app, sites, config, tampers={bad: hostile})
        record = run_seen(config, grid, seen)
        lines = record.metrics()
        self._count(hostile, name, lines)
        message = [*self._of_lines(lines, {name}), *self._of_sizes(seen, usual, case[0])]
        more = with_recorded({"resume": str(record.directory), "rounds": config["rounds"] + MORE})
        after = Seen([*honest, name])
        try:
            whole = run_seen(more, LocalGrid(client_app, sites, more), after)
        except Exception as error:
            return [*message, f"its continuation ended: {type(error).__name__}: {error}"]
        gone_on = whole.metrics()[len(lines) :]
        if len(gone_on) != MORE:
            message.append(f"its continuation has {len(gone_on)} rounds")
        return [*message, *(f"after it {one}" for one in self._of_lines(gone_on, set()))]

    def _count(self, hostile: Hostile, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        asked = [line for line in lines if name in line["rejected"] or name in line["accepted"]]
        for did, line in zip(hostile.did, asked, strict=False):
            way = did.partition(" ")[0]
            self.tally.spoiled[way] += 1
            self.tally.rejected[way] += name in line["rejected"]

    def _of_lines(self, lines: Sequence[Mapping[str, Any]], bad: set[str]) -> Iterator[str]:
        for line in lines:
            for site, why in {**line["rejected"], **line["unevaluated"]}.items():
                if site not in bad:
                    yield f"round {line['round']} rejected {site}: {why}"
            for figures in (line["test"], line["sites"]):
                if figures and not np.isfinite(figures["loss"]):
                    yield f"round {line['round']} has a loss of {figures['loss']}"

    def _of_sizes(self, seen: Seen, usual: Mapping[str, float], method: str) -> Iterator[str]:
        largest = max(usual.values(), default=0.0)
        for number, now in enumerate(seen.by_round, 1):
            for path, size in now.items():
                times = size / max(USUAL, usual.get(path, largest))
                if times > self.tally.worst.get(method, (0.0, ""))[0]:
                    self.tally.worst[method] = times, path
                if not times <= WITHIN:
                    yield f"after round {number} {path} reaches {size:.3g}, usual is {usual.get(path)}"


_DECLARED = ("FederationError", "DivergedError")


def fuzz(
    first: int, sequences: int, seed: int, tell: Callable[[str], object] = lambda said: None
) -> Tally:
    """Do the sequences ``first`` to ``first + sequences - 1`` of ``seed``; ``tell`` gets each failure at once."""
    fuzzer = RoundsFuzzer(seed, tell)
    for number in range(first, first + sequences):
        fuzzer.sequence(number)
    return fuzzer.tally


def command(doc: str | None, what: str, number: int, do: Callable[[int, int, int], Any]) -> int:
    """Fuzz from the command line, and print what became of it; 1 if anything failed.

    ``do(first, number, seed)`` does the cases and returns their tally.
    """
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument(f"--{what}", type=int, default=number, dest="number")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    logging.getLogger("flwr").setLevel("CRITICAL")
    torch.set_num_threads(1)
    os.fsync = lambda fd: None  # nobody cuts the power
    begun = time.monotonic()
    tally = do(asked.first, asked.number, asked.seed)
    print(f"{asked.number} {what} from {asked.first} on, {time.monotonic() - begun:.0f} s")
    print("\n".join(tally.lines()))
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(command(__doc__, "sequences", 2000, partial(fuzz, tell=partial(print, flush=True))))
