"""A short run of the fuzzer; ``tests/helpers/fuzzing.py`` says how a long one is done."""

from __future__ import annotations

import fuzzing
import pytest

import common.wire
import common.wire.weights


def test_damaged_payloads_of_every_kind_are_refused_or_what_their_spec_says() -> None:
    tally = fuzzing.fuzz(0, 600, seed=1)
    assert not tally.failures, "\n".join(tally.failures)
    for way in ("arrays", "records", "objects", "evaluation"):
        assert tally.accepted[way] > 10
        assert tally.refused[way] > 10


def test_it_knows_every_kind_of_payload() -> None:
    offered = {getattr(common.wire, name) for name in common.wire.__all__}
    kinds = {cls for cls in offered if hasattr(cls, "kind") and cls is not common.wire.Payload}
    assert {type(kind.payload) for kind in fuzzing.KINDS} == kinds


def test_it_sees_a_check_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common.wire.weights, "require_finite", lambda name, tensor: None)
    tally = fuzzing.fuzz(0, 250, seed=1)
    assert any("is not finite" in failure for failure in tally.failures)
