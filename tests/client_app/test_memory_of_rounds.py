"""From which round's memory a site goes on, whatever round the server names: the right one, or a sentence."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import RecordDict
from tiny import Tiny

from client_app.device import DeviceClient, phase
from client_app.state import ContextState, DeviceState, DirectoryState
from common.errors import FederationError
from common.samples.inputs import Samples
from common.wire.weights import Weights

#: what the server is said to have gone back from
WENT_BACK, LOST = "memory-went-back", "memory-lost"


class Diary(DeviceClient):
    """Remembers in which rounds it worked; ``rest`` only looks, ``idle`` not even that."""

    found: Any = None

    def _read(self) -> list[int]:
        found = self.recall()
        return [] if found is None else [int(r) for r in found["rounds"]]

    @phase("train")
    def train(self, w: Weights) -> Weights:
        """Add this round."""
        self.found = self._read()
        self.remember({"rounds": torch.tensor([*self.found, self.server_round])})
        return w

    @phase("rest")
    def rest(self, w: Weights) -> Weights:
        """Add nothing."""
        self.found = self._read()
        return w

    @phase("idle")
    def idle(self, w: Weights) -> Weights:
        """Do nothing."""
        return w


Asked = Callable[..., tuple[Any, dict[str, Any]]]


@pytest.fixture(params=["directory", "context"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> DeviceState:
    if request.param == "context":
        return ContextState(RecordDict())
    return DirectoryState(tmp_path, "record", "a")


@pytest.fixture
def ask(state: DeviceState, tmp_path: Path) -> Asked:
    """Return what asks the site for a round, and tells what it found and which figures came back."""
    tiny = Tiny(tmp_path / "tiny", "fedavg")
    one = Samples.of(torch.ones(1, 1, 1, 1), torch.tensor([3]))

    def ask(server_round: int, taken: int, phase: str = "train") -> tuple[Any, dict[str, Any]]:
        client = Diary(tiny.run, "a", one, one, state)
        config = {"server-round": server_round, "phase": phase, "taken": taken}
        _, _, figures = client.fit(tiny.weights.encode(), config)
        return client.found, {k: v for k, v in figures.items() if k.startswith("memory")}

    return ask


def work(ask: Asked, until: int) -> None:
    for r in range(1, until + 1):
        assert ask(r, r - 1) == ([*range(1, r)], {})


def test_an_equal_server_meets_the_newest(ask: Asked) -> None:
    work(ask, 5)


def test_a_server_that_did_not_take_the_last_ones_is_nothing_to_speak_of(ask: Asked) -> None:
    work(ask, 3)
    assert ask(4, 2) == ([1, 2], {})
    assert ask(5, 2) == ([1, 2], {})
    assert ask(6, 5) == ([1, 2, 5], {})


def test_an_older_server_whose_round_is_kept_gets_it_and_is_told_once(ask: Asked) -> None:
    work(ask, 5)
    assert ask(4, 3) == ([1, 2, 3], {WENT_BACK: 4.0})
    assert ask(5, 4) == ([1, 2, 3, 4], {})


def test_an_older_server_whose_round_is_gone_is_refused(ask: Asked) -> None:
    work(ask, 6)
    message = (
        "this site remembers round 4, 5, 6, and the server continues from its round 2: restore"
    )
    for phase_ in ("train", "rest"):
        with pytest.raises(FederationError, match=message):
            ask(3, 2, phase_)
    assert ask(7, 6) == ([1, 2, 3, 4, 5, 6], {})


def test_a_server_from_before_any_of_it_was_taken_begins_with_a_site_that_says_so(
    ask: Asked,
) -> None:
    work(ask, 6)
    assert ask(1, 0) == ([], {WENT_BACK: 5.0})
    assert ask(2, 1) == ([1], {})


def test_a_server_that_never_took_anything_meets_a_site_that_has_not_worked(ask: Asked) -> None:
    for r in (1, 2, 3, 4, 5):
        assert ask(r, 0) == ([], {})


def test_a_newer_server_than_the_site_s_own_memory_is_refused(ask: Asked) -> None:
    """The site's state was put back from an old copy."""
    work(ask, 2)
    message = "this site remembers round 1, 2, and the server continues from its round 7: restore"
    with pytest.raises(FederationError, match=message):
        ask(8, 7)


def test_a_site_without_any_memory_begins_afresh_and_says_so_once(ask: Asked) -> None:
    assert ask(8, 7) == ([], {LOST: 1.0})
    assert ask(9, 8) == ([8], {})


@pytest.mark.parametrize("phase_", ["rest", "idle"])
def test_a_round_in_which_nothing_was_remembered_is_gone_on_from_too(
    ask: Asked, phase_: str
) -> None:
    work(ask, 2)
    ask(3, 2, phase_)
    ask(4, 3, phase_)
    assert ask(5, 4) == ([1, 2], {})


def test_having_nothing_to_remember_yet_is_no_loss(ask: Asked) -> None:
    assert ask(1, 0, "rest") == ([], {})
    assert ask(2, 1, "rest") == ([], {})
    assert ask(3, 2) == ([], {})
    assert ask(4, 3) == ([3], {})


def test_rounds_from_which_the_server_went_back_are_not_gone_on_from(ask: Asked) -> None:
    """Behind round 2 it worked in 3, 4, 5; again behind 3 only in 4, and then nothing is left of the old 5."""
    work(ask, 5)
    ask(4, 3, "idle")
    with pytest.raises(
        FederationError, match="remembers round 3, 4, and the server continues from"
    ):
        ask(6, 5)
    assert ask(5, 4) == ([1, 2, 3], {})


def test_a_method_without_memory_keeps_no_files(
    ask: Asked, state: DeviceState, tmp_path: Path
) -> None:
    for r in (1, 2, 3):
        ask(r, r - 1, "idle")
    assert state.rounds() == []


def test_a_later_version_that_is_damaged_is_in_nobodys_way(ask: Asked, tmp_path: Path) -> None:
    work(ask, 3)
    for path in tmp_path.rglob("000003.safetensors"):
        path.write_bytes(path.read_bytes()[:-9])
    assert ask(3, 2)[0] == [1, 2]


# ---- slots: what is not written again stays, and is not copied ---------------------------------------


class Remembering(DeviceClient):
    """Writes slot "a" in odd rounds and "b" in the second, and tells what it recalls."""

    @phase("train")
    def train(self, w: Weights) -> Weights:
        """Return the weights as they came."""
        a, b = self.recall("a"), self.recall("b")
        self.report(a=-1 if a is None else float(a["x"]), b=-1 if b is None else float(b["x"]))
        if self.server_round % 2:
            self.remember({"x": torch.tensor(float(self.server_round))}, "a")
        if self.server_round == 2:
            self.remember({"x": torch.tensor(20.0)}, "b")
        return w


@pytest.mark.parametrize("kind", ["directory", "context"])
def test_slots_follow_the_rounds_that_were_taken(tmp_path: Path, kind: str) -> None:
    tiny, context = Tiny(tmp_path, "fedavg"), RecordDict()

    def told(number: int, taken: int) -> tuple[float, float]:
        state: DeviceState = ContextState(context)
        if kind == "directory":
            state = DirectoryState(tmp_path, "record", "site")
        one = Samples.of(torch.ones(1, 1, 1, 1), torch.ones(1, dtype=torch.int64))
        client = Remembering(tiny.run, "site", one, one, state)
        config = {"server-round": number, "phase": "train", "taken": taken}
        figures = client.fit(tiny.weights.encode(), config)[2]
        return float(figures["a"]), float(figures["b"])

    assert told(1, 0) == (-1, -1)
    assert told(2, 1) == (1, -1)
    assert told(3, 2) == (1, 20)
    assert told(4, 2) == (1, 20)  # round 3 was not taken
    assert told(5, 4) == (1, 20)
    assert told(6, 5) == (5, 20)
    assert told(8, 6) == (5, 20)


def test_a_real_sites_memory_is_on_disk_before_it_answers_and_a_simulated_ones_need_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = list[int]()
    flush = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: flushed.append(number) or flush(number))
    tensors = {"small": torch.ones(3), "large": torch.ones(2**19)}
    for durable, files in ((True, 2), (False, 0)):
        state = DirectoryState(tmp_path / str(durable), "record", "site", simulated=not durable)
        state.save(1, tensors)
        assert len(flushed) == files
        assert all(torch.equal(state.load(1)[name], t) for name, t in tensors.items())
        flushed.clear()


def test_a_run_takes_nothing_over_from_one_that_has_not_its_round(tmp_path: Path) -> None:
    def state(run: int) -> DirectoryState:
        return DirectoryState(tmp_path, "record", "site", run=run)

    for run, number in ((1, 1), (2, 5)):
        state(run).save(number, {"x": torch.tensor(float(number))})
    assert state(3).rounds(taken=3) == [1, 5]
    assert not any(tmp_path.rglob("3/*"))
    assert state(3).rounds(taken=5) == [5]
    assert float(state(3).load(5)["x"]) == 5
