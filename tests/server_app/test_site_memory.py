"""A site goes on from the work that the server last took, or says that it cannot: never silently from elsewhere."""

from __future__ import annotations

import logging
import shutil
from typing import Any

import pytest
from federation import TamperedGrid, numbers, run
from flwr.app import Message
from small import Small
from tampering import nan, with_arrays

from client_app.state import DirectoryState
from common.errors import FederationError
from nectar.records.outputs import with_recorded
from server_app.record import Record

pytestmark = pytest.mark.promise(
    "Records",
    "A site goes on from the work that the server last took; otherwise it refuses",
)

WARM = "feddm.start=noise feddm.warm=on"


def older(small: Small, rounds: int) -> Record:
    """Return the record of a run as it was after an earlier round; its sites are at ``rounds``."""
    newer, record = run(small(rounds=rounds, set=WARM)), run(small(rounds=1, set=WARM))
    shutil.rmtree(record.directory / "state")
    shutil.copytree(newer.directory / "state", record.directory / "state")
    return record


def more(record: Record, rounds: int) -> dict[str, Any]:
    return with_recorded({"resume": str(record.directory), "rounds": rounds})


@pytest.mark.extended
def test_a_record_older_than_its_sites_is_refused_by_them(small: Small) -> None:
    record = older(small, 5)
    message = (
        "this site remembers round 3, 4, 5, and the server continues from its round 1: restore"
    )
    with pytest.raises(FederationError, match=message):
        run(more(record, 2))
    assert [line["round"] for line in record.metrics()] == [0, 1]


@pytest.mark.extended
def test_sites_that_still_have_its_round_go_back_with_it_and_say_so_once(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    message: list[str] = []
    monkeypatch.setattr(
        logging.getLogger("flwr"), "warning", lambda text, *args: message.append(text % args)
    )
    record = older(small, 3)
    lines, whole = numbers(run(more(record, 3))), numbers(run(small(rounds=3, set=WARM)))
    assert lines[2].pop("bytes") != whole[2].pop("bytes")  # a figure more
    figures = [lines[2][key] for key in ("train", "train_median")]
    figures += lines[2]["devices"].values()
    assert [figure.pop("memory-went-back") for figure in figures] == [2.0] * 5
    assert lines == whole
    sentence = "has been at round 2 of this run, and went back with the server to its round 1: the"
    assert [line for line in message if sentence in line] == message
    assert len(message) == 3


def test_a_memory_that_is_gone_is_said_to_be(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    message: list[str] = []
    monkeypatch.setattr(
        logging.getLogger("flwr"), "warning", lambda text, *args: message.append(text % args)
    )
    record = run(small(rounds=1, set=WARM))
    shutil.rmtree(record.directory / "state" / "partition-1")
    run(more(record, 3))
    second, third = (line["devices"] for line in record.metrics()[2:])
    assert [site for site, figures in second.items() if "memory-lost" in figures] == ["partition-1"]
    assert not [site for site, figures in third.items() if "memory-lost" in figures]
    assert message == ["round 2: partition-1 lost its memory of past rounds and started afresh"]


def test_a_damaged_memory_is_that_sites_rejection(small: Small) -> None:
    record = run(small(rounds=1, set=WARM))
    (path,) = (record.directory / "state" / "partition-2").rglob("000001.safetensors")
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(bytes(content))
    run(more(record, 2))
    line = record.metrics()[-1]
    assert line["accepted"] == ["partition-0", "partition-1"]
    assert line["rejected"]["partition-2"].startswith("what this site remembers of round 1 cannot")
    assert str(record.directory) not in line["rejected"]["partition-2"]


@pytest.mark.extended
def test_a_site_whose_reply_was_not_taken_goes_on_as_if_it_had_not_worked(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rejected for longer than versions are kept, it still has the one that the server took."""
    read: list[tuple[str, int]] = []
    load = DirectoryState.load

    def spy(self: DirectoryState, server_round: int) -> Any:
        read.append((self._parts[2], server_round))
        return load(self, server_round)

    def bad(instruction: Message, reply: Message) -> Message:
        late = int(instruction.metadata.group_id) in (2, 3, 4, 5)
        changed: Message = with_arrays(nan)(instruction, reply) if late else reply
        return changed

    monkeypatch.setattr(DirectoryState, "load", spy)
    record = run(small(rounds=7, set=WARM), TamperedGrid, tampers={1: bad})
    assert [r for site, r in read if site == "partition-0"] == [1, 2, 3, 4, 5, 6]
    assert [r for site, r in read if site == "partition-1"] == [1, 1, 1, 1, 1, 6]
    assert record.metrics()[6]["accepted"] == ["partition-0", "partition-1", "partition-2"]
