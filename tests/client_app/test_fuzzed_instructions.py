"""A short run of the fuzzer of instructions; ``tests/helpers/fuzzing_site.py`` says how a long one is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fuzzing_site
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from fuzzing_rounds import CASES
from real_site import RECORD, Site
from small import Small

from client_app.app import reason_for_server
from common.config.loading import load
from common.division import Division
from common.errors import REASON_LENGTH, ConfigError
from common.wire.weights import Weights

pytestmark = pytest.mark.promise(
    "Absurd figures, and the roll call",
    "Sequences of hostile rounds ruin nothing that stays; hostile instructions end in a sentence",
    also="`tests/helpers/fuzzing_rounds.py`, `tests/helpers/fuzzing_site.py`",
)

SOME = [
    next((False, case) for case in CASES if case[0] == "fedavg"),
    next((False, case) for case in CASES if case[0] == "feddpms"),
    next((True, case) for case in fuzzing_site.FOLDERS if case[0] == "scaffold"),
]


@pytest.mark.extended
def test_odd_instructions_are_carried_out_or_refused_in_a_sentence() -> None:
    tally = fuzzing_site.fuzz(0, 150, 1, SOME)
    assert not tally.failures, "\n".join(tally.failures)
    assert tally.worked["instruction"] > 20
    assert tally.refused["instruction"] > 40
    assert tally.refused["settings"] > 20


@pytest.mark.extended
def test_it_sees_a_file_that_is_written_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from client_app.fedavg import trained_weights

    def written(*given: Any) -> Any:
        (tmp_path / "dropped").write_text("x")
        return trained_weights(*given)

    monkeypatch.setattr("client_app.fedavg.trained_weights", written)
    tally = fuzzing_site.fuzz(0, 30, 1, SOME[:1])
    assert any("dropped" in failure for failure in tally.failures)


# ---- what an instruction lacks, or says that cannot be -----------------------------------------------


def instruction(small: Small) -> RecordDict:
    """Return what an honest server asks."""
    weights = Weights.of(Division(load(small(method="fedavg"))).run.build_model())
    fields = ConfigRecord({"server-round": 1, "phase": "train", "record": RECORD})
    return RecordDict({"arrays": ArrayRecord(weights.encode()), "config": fields})


@pytest.mark.parametrize("missing", ["arrays", "config"])
@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_an_instruction_without_a_record_is_refused_by_its_name(
    small: Small, kind: str, missing: str
) -> None:
    site = Site(small(method="fedavg", set="data.site_holdout=0.2"))
    content = instruction(small)
    del content[missing]
    assert f"the instruction's '{missing}'" in site._ask(kind, content).error.reason


def test_what_an_instruction_says_of_rounds_and_ledgers_is_refused_if_it_is_none(
    small: Small, tmp_path: Path
) -> None:
    site = Site(small(method="fedavg"), **{"site": "north", "state-dir": str(tmp_path / "state")})
    for taken in (-1, 0.5, "1", [1], 10**7):
        assert "says taken=" in site.train("train", taken=taken).error.reason
    for head in ("x", "[" * 50_000, '{"length": []}', "1"):
        answer = site.train("train", **{"ledger-head": head})
        assert answer.error.reason == "the instruction's ledger-head is not the head of a ledger"
        answer = site.roll_call(**{"ledger-heads": head})  # type: ignore[arg-type]
        if head != '{"length": []}':  # none of this site
            assert (
                answer.error.reason == "the instruction's ledger-heads is not the head of a ledger"
            )


def test_an_instruction_without_a_round_or_a_phase_is_refused(small: Small) -> None:
    site = Site(small(method="fedavg"))
    assert "has no phase ''" in site.train("").error.reason
    content = instruction(small)
    del content.config_records["config"]["server-round"]
    assert "does not say of which round it is" in site._ask("train", content).error.reason


def test_a_sentence_is_as_short_as_the_server_reads() -> None:
    assert len(reason_for_server(ConfigError("x" * 5000), owner=True)) == REASON_LENGTH


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["dirichlet", "quantity"])
def test_a_division_that_comes_to_no_end_is_given_up_in_time(small: Small, kind: str) -> None:
    words = f"partition.kind={kind} partition.alpha=0.01 partition.max_draws={10**9}"
    config = small(method="fedavg", set=f"{words} partition.min_size=258")
    node = {"partition-id": 0, "num-partitions": 5, "roll-call-seconds": 0.5}
    site = Site(config, **node)
    assert "ran out of the roll call's time" in site.roll_call().error.reason
    answer = site.train("train", **{"seconds-left": 0.3})
    assert answer.error.reason == "ran out of the round's time (0 s)"
    assert "ran out of the round's time" in site.train("train").error.reason
