"""A record that was damaged, or put together from two times, is refused with what is damaged; nothing of it goes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from federation import numbers, run
from places import contents
from small import SMALL

from common.errors import FederationError, NectarError
from common.storage import tensor_file
from nectar.cli import main as nectar
from nectar.records.outputs import with_recorded
from nectar.records.record import RunRecord
from server_app.checkpoint import Checkpoint
from server_app.record import Record
from server_app.run_directory import RunDirectory

pytestmark = pytest.mark.promise(
    "Records",
    "A damaged record is refused by file, line and round, and stays as it is",
)

ROUNDS = 4

Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keys = {"output-dir": str(tmp_path_factory.mktemp("damage")), "rounds": ROUNDS}
    return run({**keys, "set": f"{SMALL} feddm.start=noise feddm.warm=on"}).directory


@pytest.fixture
def record(recorded: Path, tmp_path: Path) -> Path:
    return shutil.copytree(recorded, tmp_path / recorded.name)


def more(record: Path, rounds: int = ROUNDS + 1) -> dict[str, Any]:
    """Return the run config that continues the record where it lies."""
    return with_recorded(
        {"resume": str(record), "output-dir": str(record.parent), "rounds": rounds}
    )


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x40
    path.write_bytes(bytes(content))


def line(number: int, change: Callable[[str], str | None]) -> Damage:
    """Return what changes a line of metrics.jsonl, or takes it away."""

    def damage(record: Path) -> None:
        path = record / "metrics.jsonl"
        lines = path.read_text().splitlines()
        changed = change(lines[number])
        lines[number : number + 1] = [] if changed is None else [changed]
        path.write_text("".join(f"{text}\n" for text in lines))

    return damage


def older(name: str) -> Damage:
    """Return what puts a checkpoint of round 2 in the place of a newer one."""

    def damage(record: Path) -> None:
        path = record / "checkpoint" / name
        newest = Checkpoint.load(path)
        Checkpoint(2, newest.weights, newest.strategy, newest.validation_accuracy).save(path)

    return damage


DAMAGES: dict[str, tuple[Damage, str]] = {
    "a line in the middle": (line(1, lambda text: text.replace(":", ";", 1)), r"line 2"),
    "the last line": (line(ROUNDS, lambda text: text.replace("{", "(", 1)), rf"line {ROUNDS + 1}"),
    "a line less": (line(2, lambda text: None), r"line 3 of .* is round 3's where round 2's"),
    "a line twice": (
        line(2, lambda text: f"{text}\n{text}"),
        r"line 4 of .* is round 2's where round 3",
    ),
    "the last line less": (line(ROUNDS, lambda text: None), r"no line of round 4"),
    "all lines": (lambda r: (r / "metrics.jsonl").unlink(), r"no line of round 0"),
    "no checkpoint": (
        lambda r: (r / "checkpoint" / "last.safetensors").unlink(),
        r"last\.safetensors is missing, though round 4 was recorded",
    ),
    "an older checkpoint": (older("last.safetensors"), r"is of round 2, and .* up to round 4"),
    "a flipped best checkpoint": (
        lambda r: flip(r / "checkpoint" / "best.safetensors", -100),
        r"best\.safetensors cannot be read: .*(checksum|changed)",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_record_is_refused_and_stays_as_it_is(record: Path, name: str) -> None:
    config = more(record)
    damage, message = DAMAGES[name]
    damage(record)
    before = contents(record)
    with pytest.raises(NectarError, match=message) as refused:
        run(config)
    assert "\n" not in str(refused.value)
    assert contents(record) == before
    assert not RunDirectory(record).is_written()


def test_readers_say_which_line_is_damaged(
    record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGES["a line in the middle"][0](record)
    assert nectar(["report", str(record)]) == 2
    assert "metrics.jsonl is damaged at line 2" in capsys.readouterr().err
    with pytest.raises(FederationError, match="line 2"):
        RunRecord.open(record).rounds  # noqa: B018
    listed = RunRecord.find(record)
    assert listed is not None
    assert listed.done == ROUNDS


def test_what_a_crash_leaves_is_no_damage(recorded: Path, record: Path) -> None:
    """A line cut short, and the line of a round whose checkpoint was not written: that round is done again."""
    path, whole = record / "metrics.jsonl", Record(recorded)
    path.write_text(path.read_text() + '{"round": 5, "te')
    assert [line["round"] for line in Record(record).metrics()] == [0, 1, 2, 3, 4]
    assert [line["round"] for line in run(more(record, 5)).metrics()] == [0, 1, 2, 3, 4, 5]
    done = path.read_text().splitlines()
    path.write_text("\n".join([*done, done[-1].replace('"round": 5', '"round": 6')]) + "\n")
    assert [line["round"] for line in run(more(record, 6)).metrics()] == [0, 1, 2, 3, 4, 5, 6]
    assert numbers(Record(record))[: ROUNDS + 1] == numbers(whole)


def test_fewer_rounds_than_are_done_are_refused(
    record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(record)
    assert nectar(["run", f"resume={record}", f"output-dir={record.parent}", "rounds=3"]) == 2
    message = capsys.readouterr().err
    assert "is at round 4" in message
    assert "rounds=3" in message
    assert contents(record) == before


def test_a_continued_run_remembers_how_far_it_was_to_go(record: Path) -> None:
    run(more(record, 5))
    assert with_recorded({"resume": str(record)})["rounds"] == 5
    assert with_recorded({"resume": str(record), "rounds": 7})["rounds"] == 7


def test_equal_contents_are_equal_files(tmp_path: Path) -> None:
    """Of several keys safetensors writes now one and now the other first."""
    for i in range(20):
        tensor_file.save(tmp_path / str(i), {"a": torch.arange(3.0)}, {"schema": 1})
    assert len({(tmp_path / str(i)).read_bytes() for i in range(20)}) == 1
