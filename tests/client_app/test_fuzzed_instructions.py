"""A short run of the fuzzer of instructions; ``tests/helpers/fuzzing_site.py`` says how a long one is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fuzzing_site
import pytest
from fuzzing_rounds import CASES

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


def test_it_sees_a_file_that_is_written_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from client_app.fedavg import train_locally

    def written(*given: Any) -> Any:
        (tmp_path / "dropped").write_text("x")
        return train_locally(*given)

    monkeypatch.setattr("client_app.fedavg.train_locally", written)
    tally = fuzzing_site.fuzz(0, 30, 1, SOME[:1])
    assert any("dropped" in failure for failure in tally.failures)
