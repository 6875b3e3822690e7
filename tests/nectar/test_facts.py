"""What a report says of a method: every method has its facts, and they follow from what the record states."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from golden import assert_sentence
from places import ROOT

from common.config.loading import load
from common.methods import METHODS, Method
from common.settings.base import Disclosure
from nectar.report.facts import facts_of

GOLDEN = ROOT / "tests" / "golden" / "facts.txt"
ADAM = "flwr.serverapp.strategy:FedAdam"


def nothing(name: str) -> None:
    return None


def disclosed(**keys: Any) -> Disclosure:
    found = load(keys).settings.disclosure()
    assert found is not None
    return found


#: methods, and settings that change what leaves a device
TYPED = [
    *METHODS,
    ADAM,
    "feddm feddm.start=real",
    "feddm feddm.start=noise feddm.iterations=0",
    "feddm feddm.start=real feddm.iterations=0",
    "feddm feddm.start=smooth feddm.iterations=0",
    "feddm feddm.start=mean feddm.small_class=leave_out",
    "feddm feddm.start=mix:2 feddm.iterations=0",
    "feddm feddm.start=mix:3 feddm.small_class=leave_out",
    "feddm feddm.image_weighting=counts",
    "feddm feddm.mechanism=feature privacy.noise_multiplier=1 privacy.counts=public",
    "fedsynth fedsynth.start=statistics",
    "fedsynth fedsynth.start=shared",
    "fedsynth fedsynth.start=shared fedsynth.labels=fixed",
]


@pytest.mark.parametrize("typed", TYPED)
def test_what_a_report_says_that_leaves_a_device(typed: str, pytestconfig: pytest.Config) -> None:
    """As a whole: what the settings disclose, the method's name, what is protected and what is sent."""
    method, _, chosen = typed.partition(" ")
    stated = disclosed(method=method, set=chosen)
    facts = facts_of(method, stated, load({"method": method, "set": chosen}).settings)
    assert facts is not None
    sentences = [*facts.protected, *facts.sent]
    assert all(sentence.endswith(".") for sentence in sentences)
    assert bool(facts.carries) != (stated.images or stated.payload == "synthetic batches")
    fields = " ".join(f"{name}={value}" for name, value in asdict(stated).items() if value)
    text = "\n".join([f"{facts.display_name} ({fields})", *sentences])
    assert_sentence(pytestconfig, GOLDEN, typed.replace(":", "-"), text)


@pytest.mark.parametrize(
    "recorded",
    [
        None,
        {},
        "weights",
        {**asdict(Disclosure("weights")), "epsilon": 1.0},
        {**asdict(Disclosure("weights")), "labels": "no"},
        {**asdict(Disclosure("weights")), "began_as": "hope"},
        {**asdict(Disclosure("weights")), "payload": 3},
    ],
)
def test_what_is_not_understood_in_a_record_is_not_taken_for_a_statement(recorded: Any) -> None:
    assert Disclosure.read(recorded) is None


def test_a_flower_strategy_s_devices_are_fedavg_s() -> None:
    weights = disclosed(method=ADAM)
    assert weights == Disclosure("weights", update=True)
    adam, fedavg = (facts_of(method, weights, None) for method in (ADAM, "fedavg"))
    assert adam is not None
    assert fedavg is not None
    assert (adam.display_name, fedavg.display_name) == ("FedAdam", "FedAvg")
    assert replace(adam, display_name="FedAvg") == fedavg


def test_a_method_of_one_s_own_has_its_name_and_its_settings_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = Method("mine", "mine:Strategy", "mine:Client", "mine:Settings")
    monkeypatch.setattr("nectar.report.facts.resolve", lambda name: own)
    monkeypatch.setattr("nectar.report.facts.is_foreign", lambda name: False)
    plain = facts_of("mine:METHOD", Disclosure("weights", update=True), None)
    assert plain is not None
    assert (plain.display_name, plain.carries) == ("mine", "weights")
    assert plain.sent == ("What sites sent (weights) is a function of private data.",)
