"""The ledger's file: what it gives back, what it does not take for itself, and what a kill leaves of it."""

from __future__ import annotations

import fcntl
import itertools
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.privacy import ledger as ledger_module
from common.privacy.events import Event
from common.privacy.ledger import HEAD_FILE, LEDGER, Charge, Ledger, LedgerError, LedgerTip

pytestmark = pytest.mark.promise(
    "A site is the master of its own machine",
    "Epsilon is never under-counted, over kills, retries and all runs; no run passes the "
    "budget; with one, runs that are not private are refused",
)

EVENT = Event("dp-sgd", 1.1, 0.05, 30)


def charge(server_round: int, *events: Event) -> Charge:
    return Charge(
        *("2026-01-01T00:00:00Z", "north", "a-run", server_round, "train", "fedavg", "/data"),
        events or (EVENT,),
    )


def add(ledger: Ledger, *rounds: int) -> None:
    for server_round in rounds:
        ledger.append(charge(server_round), lambda before: None)


def test_what_was_charged_is_read_again_in_its_order(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "state")
    assert ledger.read().head == LedgerTip()
    add(ledger, 1, 2, 2)
    again = Event("means", 2.0, steps=3, adjacency="replace-one")
    lines = ledger.append(charge(3, EVENT, again), lambda before: None)
    assert lines == Ledger(tmp_path / "state").read()
    assert [one.round for one in lines.charges] == [1, 2, 2, 3]
    assert lines.events == [EVENT, EVENT, EVENT, EVENT, again]
    assert (lines.head.length, lines.head.sha256) == (4, lines.chain[-1])


def test_every_line_can_be_read_by_a_person(tmp_path: Path) -> None:
    add(Ledger(tmp_path), 1)
    (line,) = (tmp_path / LEDGER).read_text().splitlines()
    message = json.loads(line)
    assert (message["record"], message["round"], message["unit"]) == ("a-run", 1, "example")
    assert message["events"] == [EVENT.to_dict()]


def test_who_asks_sees_what_stands_there_and_can_refuse(tmp_path: Path) -> None:
    ledger, seen = Ledger(tmp_path), []
    add(ledger, 1)

    def refuse(before: object) -> None:
        seen.append(before)
        raise LedgerError("no")

    with pytest.raises(LedgerError, match="no"):
        ledger.append(charge(2), refuse)
    assert seen == [(charge(1),)]
    assert ledger.read().charges == (charge(1),)


# ---- edited, shortened, put back ----------------------------------------------------------------------


def _edit(line: str) -> str:
    message = json.loads(line)
    message["events"][0]["steps"] = 1
    return json.dumps(message, sort_keys=True)


DAMAGES: dict[str, Callable[[list[str]], list[str]]] = {
    "the last line is gone": lambda lines: lines[:-1],
    "all lines are gone": lambda lines: [],
    "the first line is gone": lambda lines: lines[1:],
    "one in the middle is gone": lambda lines: [lines[0], *lines[2:]],
    "two lines changed places": lambda lines: [lines[1], lines[0], *lines[2:]],
    "a line stands twice": lambda lines: [*lines, lines[-1]],
    "an event was edited": lambda lines: [_edit(lines[0]), *lines[1:]],
    "a line is none": lambda lines: [*lines, "[]"],
    "half of the last line is gone": lambda lines: [*lines[:-1], lines[-1][:40]],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_ledger_that_was_touched_is_refused(tmp_path: Path, damage: str) -> None:
    ledger = Ledger(tmp_path)
    add(ledger, 1, 2, 3)
    lines = (tmp_path / LEDGER).read_text().splitlines()
    left = DAMAGES[damage](lines)
    (tmp_path / LEDGER).write_text("".join(f"{line}\n" for line in left))
    before = (tmp_path / LEDGER).read_bytes()
    for use in (ledger.read, lambda: add(ledger, 4)):
        with pytest.raises(LedgerError) as caught:
            use()
        assert str(tmp_path) not in caught.value.reported
    assert (tmp_path / LEDGER).read_bytes() == before


def test_a_ledger_that_is_gone_is_refused_and_one_whose_head_is_gone_too(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    add(ledger, 1, 2)
    (tmp_path / LEDGER).rename(tmp_path / "elsewhere")
    with pytest.raises(LedgerError, match="has 0 lines"):
        ledger.read()
    (tmp_path / "elsewhere").rename(tmp_path / LEDGER)
    (tmp_path / HEAD_FILE).write_text("{}")
    with pytest.raises(LedgerError, match="cannot be read"):
        ledger.read()
    (tmp_path / HEAD_FILE).unlink()
    with pytest.raises(LedgerError, match="has 2 lines"):
        ledger.read()


def test_an_older_copy_of_both_files_is_a_valid_ledger_and_lacks_the_later_head(
    tmp_path: Path,
) -> None:
    ledger = Ledger(tmp_path / "state")
    add(ledger, 1)
    shutil.copytree(tmp_path / "state", tmp_path / "backup")
    add(ledger, 2)
    later = ledger.read()
    assert later.has(later.head)
    assert later.has(LedgerTip(1, later.chain[0]))
    assert not later.has(LedgerTip(2, later.chain[0]))
    shutil.rmtree(tmp_path / "state")
    shutil.copytree(tmp_path / "backup", tmp_path / "state")
    older = ledger.read()
    assert not older.has(later.head)
    add(ledger, 3)
    assert not ledger.read().has(later.head)


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("")
    (tmp_path / LEDGER).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LedgerError, match="cannot be written"):
        add(Ledger(tmp_path), 1)


# ---- killed, and two at once --------------------------------------------------------------------------


def _adds(directory: str) -> None:
    add(Ledger(Path(directory)), *range(10))


class Killed(BaseException):
    """Ends a charge where it is, as a kill does."""


STEPS = ("half a line", "the line", "its sync", "the head", "the directory's sync")


def _kill_at(step: str, patch: pytest.MonkeyPatch) -> None:
    """Let the next charge end right after a step of its own, not of the mending before it."""
    written = False

    def write(file: int, line: bytes) -> None:
        nonlocal written
        written = True
        os.write(file, line[: len(line) // 2] if step == "half a line" else line)
        if step in ("half a line", "the line"):
            raise Killed

    def after(name: str, done: Callable[..., None]) -> Callable[..., None]:
        def run(*given: Any) -> None:
            done(*given)
            if written and step == name:
                raise Killed

        return run

    patch.setattr(ledger_module, "_write", write)
    patch.setattr(os, "fsync", after("its sync", os.fsync))
    patch.setattr(ledger_module, "write_json", after("the head", ledger_module.write_json))
    patch.setattr(ledger_module, "_sync", after("the directory's sync", ledger_module._sync))


@pytest.mark.parametrize(
    "steps",
    [*itertools.product(STEPS, repeat=2), *itertools.product(STEPS, repeat=3)],
    ids=" + ".join,
)
def test_kills_at_any_steps_one_after_the_other_leave_a_ledger_that_counts_all(
    tmp_path: Path, steps: tuple[str, ...]
) -> None:
    """A charge more for each kill at the most, and never one too few: those that ended are all there."""
    ledger = Ledger(tmp_path)
    add(ledger, 1)
    for number, step in enumerate(steps):
        with pytest.MonkeyPatch.context() as patch:
            _kill_at(step, patch)
            with pytest.raises(Killed):
                add(ledger, 100 + number)
    add(ledger, 2)
    rounds = [one.round for one in ledger.read().charges]
    assert [r for r in rounds if r < 100] == [1, 2]
    whole = [100 + number for number, step in enumerate(steps) if step != "half a line"]
    assert [r for r in rounds if r >= 100] == whole


def test_a_ledger_that_another_process_holds_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path)
    add(ledger, 1)
    monkeypatch.setattr(ledger_module, "PATIENCE", 0.05)
    with (tmp_path / LEDGER).open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for use in (ledger.read, lambda: add(ledger, 2)):
            with pytest.raises(LedgerError, match="in another process's hands"):
                use()
    add(ledger, 2)


def test_processes_that_charge_at_once_leave_one_chain(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_adds, args=(str(tmp_path),)) for _ in range(4)]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes):
        assert Ledger(tmp_path).read().head.length <= 40, "a reader meets no half of a charge"
    lines = Ledger(tmp_path).read()
    assert lines.head.length == 40
    assert sorted(one.round for one in lines.charges) == sorted(list(range(10)) * 4)


def test_a_directory_that_cannot_be_written_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LedgerError, match=r"cannot be written \(No space left on device\)"):
        add(Ledger(tmp_path), 1)


@pytest.mark.parametrize(
    "wrong", [None, {}, {"length": -1, "sha256": "0" * 64}, {"length": 1, "sha256": "0"}]
)
def test_what_is_no_head(wrong: object) -> None:
    with pytest.raises(ValueError, match="not a head"):
        LedgerTip.read(wrong)
