"""A short run of the fuzzer; ``tests/helpers/fuzzing.py`` says how a long one is done."""

from __future__ import annotations

import importlib
import pkgutil

import fuzzing
import pytest
from fuzzing_rounds import CASES

import common.wire
import common.wire.weights
from common.wire.weights import Weights


def test_damaged_payloads_of_every_kind_are_refused_or_what_their_spec_says() -> None:
    tally = fuzzing.fuzz(0, 600, seed=1)
    assert not tally.failures, "\n".join(tally.failures)
    for way in ("arrays", "records", "objects", "evaluation", "riding", "roll_call"):
        assert tally.accepted[way] > 10
        assert tally.refused[way] > 10


def test_what_methods_send_and_are_sent_in_parts_is_refused_or_what_its_spec_says() -> None:
    names = ("scaffold", "fedmix", "fedgen", "feddpms")
    some = {name: case for case in CASES if (name := case[0]) in names}
    fedssyn = [case for case in CASES if "fedssyn.diagnostics" in case[1]]
    kinds = fuzzing.kinds_of_methods([*some.values(), *fedssyn])
    bundles = {part for kind in kinds for part in getattr(kind.payload, "parts", ())}
    assert bundles >= {"control", "means", "generator", "decoder", "scarce", "inner", "share"}
    tally = fuzzing.fuzz(0, 600, 1, kinds)
    assert not tally.failures, "\n".join(tally.failures)
    assert tally.accepted["arrays"] > 10
    assert tally.refused["arrays"] > 10


def test_it_knows_every_kind_of_payload() -> None:
    modules = [
        importlib.import_module(f"common.wire.{found.name}")
        for found in pkgutil.iter_modules(common.wire.__path__)
    ]
    classes = {cls for module in modules for cls in vars(module).values() if isinstance(cls, type)}
    kinds = {cls for cls in classes if isinstance(getattr(cls, "kind", None), str)}
    assert {type(kind.payload) for kind in fuzzing.KINDS} == kinds


def test_it_sees_a_check_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common.wire.weights, "require_finite", lambda name, tensor: None)
    weights = [kind for kind in fuzzing.KINDS if isinstance(kind.payload, Weights)]
    tally = fuzzing.fuzz(0, 250, 1, weights)
    assert any("is not finite" in failure for failure in tally.failures)
