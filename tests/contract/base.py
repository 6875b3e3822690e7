"""The runs of a case, each made once in a session and shared, and what can be said of two of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from federation import numbers
from flwr.app import Message, RecordDict

from client_app.app import app as client_app
from client_app.state import DirectoryState
from common.config.loading import load
from common.sites import Site, site_name
from nectar.engines.local_grid import LocalGrid
from nectar.records.outputs import with_recorded
from server_app.app import Observer, serve
from server_app.checkpoint import Checkpoint
from server_app.record import Record
from server_app.run_directory import RunDirectory
from tests.contract.cases import SITES, Case, config_of

Sizes = dict[int, dict[str, dict[str, int]]]


class WeighingGrid(LocalGrid):
    """A federation that weighs what passes: by round, way and site, in bytes as Flower counts them.

    What sites are asked beside a round's instructions, or behind the last of them, is that round's.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sizes: Sizes = defaultdict(lambda: {"down": {}, "up": {}})
        self._round = 0

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Note whose round it is."""
        messages = list(messages)
        rounds = (m.metadata.group_id for m in messages if m.metadata.message_type == "train")
        self._round = max([self._round, *map(int, rounds)])
        return super().push_messages(messages)

    def _call(self, message: Message) -> Message:
        reply = super()._call(message)
        if self._round:
            site = site_name(self.node_config(message.metadata.dst_node_id))
            for way, passed in (("down", message), ("up", reply)):
                sites = self.sizes[self._round][way]
                sites[site] = sites.get(site, 0) + _bytes(passed.content)
        return reply


def _bytes(content: RecordDict) -> int:
    return sum(len(key) + record.count_bytes() for key, record in content.items())


class Ran(NamedTuple):
    """A run that ended, and what passed in it."""

    record: Record
    sizes: Sizes


class Runs:
    """Makes runs of cases in a folder; a case's run under the same settings is made once, and stays as it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: dict[tuple[str, str], Ran] = {}
        self._sums: dict[Path, str] = {}

    def base(self, case: Case, more: str = "") -> Ran:
        """Return the run of ``case`` under the settings ``more``, which nobody changes."""
        key = case.name, more
        if key not in self._made:
            config = self.config(case, more)
            grid = WeighingGrid(client_app, load(config).federation.sites, config)
            self._made[key] = Ran(serve(grid, load(config)), grid.sizes)
            self._sums |= _sums(self._made[key].record)
        return self._made[key]

    def config(self, case: Case, more: str = "", **keys: Any) -> dict[str, Any]:
        """Return the run config of ``case``."""
        folder = str(self.folder / f"{len(self._made)}")
        return config_of(case.method, case.words, SITES, case.rounds, folder, more) | keys

    def require_unchanged(self) -> None:
        """Raise AssertionError if a test wrote into a record that it shares."""
        for made in self._made.values():
            assert _sums(made.record).items() <= self._sums.items(), made.record.directory


def _sums(record: Record) -> dict[Path, str]:
    files = (path for path in record.directory.rglob("*") if path.is_file())
    return {path: sha256(path.read_bytes()).hexdigest() for path in files}


class BrokenOffError(Exception):
    """A run that ends here, as if it had been killed."""


class _Stop(Observer):
    """Breaks a run off after the first round that it does, which is not its last."""

    def __init__(self) -> None:
        self._stood: int | None = None
        self.directory = Path()

    def begun(self, record: RunDirectory, sites: Sequence[Site]) -> None:
        self.directory = record.directory

    def round_done(self, server_round: int, rounds: int, sites: Sequence[Site]) -> None:
        if self._stood is not None and self._stood < server_round < rounds:
            raise BrokenOffError
        self._stood = server_round


def broken_off(config: dict[str, Any]) -> Record:
    """Run ``config`` to its end, broken off behind each of its rounds and continued."""
    sites = load(config).federation.sites
    for _ in range(config["rounds"] + 1):
        stop = _Stop()
        try:
            return serve(LocalGrid(client_app, sites, config), load(config), stop)
        except BrokenOffError:
            config = with_recorded({"resume": str(stop.directory)})
    raise AssertionError("no attempt came a round further")


# ---- what two runs have in common ---------------------------------------------------------------------


def ended_with(record: Record) -> dict[str, Any]:
    """Return by path what the newest checkpoint holds and what each site remembers of the newest round."""
    kept = Checkpoint.load(record.last)
    found: dict[str, Any] = {
        "weights": dict(kept.weights),
        "strategy": dict(kept.strategy),
    }
    if record.best.is_file():
        best = Checkpoint.load(record.best)
        found["best"] = [best.server_round, best.validation_accuracy, dict(best.weights)]
    folder = record.directory / "state"
    for site in sorted(path.name for path in folder.glob("*") if path.is_dir()):
        memory = DirectoryState(folder, "", site)
        for number in memory.rounds()[-1:]:
            found[site] = dict(memory.load(number))
    return found


def difference(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Yield the paths at which two nested values differ in a bit."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in one.keys() | other.keys():
            yield from difference(one.get(key), other.get(key), f"{path}/{key}")
    elif (
        isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other)
    ):
        for i, pair in enumerate(zip(one, other, strict=True)):
            yield from difference(*pair, f"{path}/{i}")
    elif all(isinstance(each, torch.Tensor | np.ndarray) for each in (one, other)):
        if one.dtype != other.dtype or not torch.equal(*map(torch.as_tensor, (one, other))):
            yield path
    elif one != other:
        yield f"{path}: {one!r:.60} {other!r:.60}"


def assert_same(one: Record, other: Record) -> None:
    """Assert that two runs have the same numbers, and ended with the same state, to the bit."""
    assert numbers(one) == numbers(other)
    assert_same_end(one, other)


def assert_same_end(one: Record, other: Record, but: str = "") -> None:
    """Assert that two runs ended with the same weights, memories and state at the server, ``but`` a part of it."""
    ends = [ended_with(record) for record in (one, other)]
    for end in ends:
        end["strategy"].pop(but, None)
    assert not list(difference(*ends))
