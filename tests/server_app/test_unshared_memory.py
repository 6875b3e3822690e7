"""A simulation over machines that share no folder: its devices lack what they remembered, and the run says so."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from federation import TamperedGrid, numbers, run
from flwr.app import Message
from small import Small

from common.errors import FederationError
from common.sites import RAY, SUPERLINK, Site
from common.specs.updates import MEMORY_LOST
from common.wire.weights import Weights
from nectar.records.outputs import with_recorded
from server_app.record import Record
from strategies.exchange.membership import Members
from strategies.exchange.replies import Upload

WARM = "feddm.start=noise feddm.warm=on"


def on_another_machine(config: dict[str, Any], after: int, keeps: int = 0) -> Any:
    """Let the device work elsewhere from a round on: of what it wrote the first ``keeps`` versions are there."""

    def tamper(instruction: Message, reply: Message) -> Message:
        if int(instruction.metadata.group_id) == after:
            (state,) = Path(config["output-dir"]).glob("*/state/partition-1")
            shutil.rmtree(state) if not keeps else [
                path.unlink() for path in sorted(state.rglob("0*.safetensors"))[keeps:]
            ]
        return reply

    return tamper


SENTENCE = (
    "partition-1 lacks what it remembered of its round {} of this run: the machines that simulate it do not share the "
    "run's record, which stores it; name a folder that all of them share (output-dir=/shared/runs), or simulate on "
    "one machine"
)


@pytest.mark.parametrize(("after", "keeps"), [(1, 0), (2, 1)])
def test_a_simulated_device_that_lost_its_memory_stops_the_run(
    small: Small, after: int, keeps: int
) -> None:
    """On its first visit to another machine, and when it is back on one with an older version."""
    config = small(rounds=4, set=WARM)
    tampers = {1: on_another_machine(config, after, keeps)}
    with pytest.raises(FederationError) as stopped:
        run(config, TamperedGrid, tampers=tampers)
    assert str(stopped.value) == SENTENCE.format(after)
    (record,) = map(Record, Path(config["output-dir"]).iterdir())
    assert [line["round"] for line in record.metrics()] == list(range(after + 1))
    provenance = json.loads((record.directory / "provenance.json").read_text())
    assert provenance["outcome"] == f"failed: {stopped.value}"


@pytest.mark.extended
def test_what_was_shared_later_goes_on_to_the_same_numbers(small: Small, tmp_path: Path) -> None:
    config = small(rounds=3, set=WARM)
    kept = tmp_path / "kept"

    def moved(instruction: Message, reply: Message) -> Message:
        if int(instruction.metadata.group_id) == 1:
            (state,) = Path(config["output-dir"]).glob("*/state/partition-1")
            state.rename(kept)
        return reply

    with pytest.raises(FederationError, match="lacks what it remembered"):
        run(config, TamperedGrid, tampers={1: moved})
    (directory,) = Path(config["output-dir"]).iterdir()
    shutil.rmtree(directory / "state" / "partition-1", ignore_errors=True)
    kept.rename(directory / "state" / "partition-1")
    done = run(with_recorded({"resume": str(directory)}))
    assert numbers(done) == numbers(run(small(rounds=3, set=WARM)))


def test_a_real_site_that_lost_its_memory_goes_on_with_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message: list[str] = []
    monkeypatch.setattr(
        logging.getLogger("flwr"), "warning", lambda text, *args: message.append(text % args)
    )
    members = Members(2, last_accepted_round={"north": 1}, accepted_this_process={"north"})

    def tell(engine: str) -> None:
        site = Site("north", 7, 10, engine=engine)
        members.log_memory_loss(2, Upload(site, Weights({}), 10, {MEMORY_LOST: 1.0}))

    tell(SUPERLINK)
    assert message == ["round 2: north lost its memory of past rounds and started afresh"]
    with pytest.raises(FederationError, match="north lacks what it remembered of its round 1"):
        tell(RAY)
    members.accepted_this_process.clear()  # its state was deleted before the run was continued, to let it begin afresh
    tell(RAY)
    assert len(message) == 2


def test_a_real_site_that_says_it_is_simulated_ends_no_run() -> None:
    """The roll call asks each site what it is a node of: among real ones nobody is believed to be simulated."""
    liar, honest = Site("north", 7, 10, engine=RAY), Site("south", 8, 10, engine=SUPERLINK)
    members = Members(
        2, [liar, honest], last_accepted_round={"north": 1}, accepted_this_process={"north"}
    )
    members.log_memory_loss(2, Upload(liar, Weights({}), 10, {MEMORY_LOST: 1.0}))
    members.check_memory(liar)
