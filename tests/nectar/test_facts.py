"""What a report says of a method: every method has its facts, and they follow from what the record states."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from documents import written
from federation import run
from small import Small

from common.config.loading import load
from common.errors import ConfigError
from common.methods import METHODS, Method
from common.settings.base import Disclosure
from nectar.report.facts import FACTS, Facts, Given, facts_of

ADAM = "flwr.serverapp.strategy:FedAdam"


def nothing(name: str) -> None:
    return None


def disclosed(**keys: Any) -> Disclosure:
    found = load(keys).settings.disclosure()
    assert found is not None
    return found


def own_facts(stated: Disclosure, given: Given) -> Facts:
    return Facts("Mine", sent=(f"My {stated.payload} were sent.",))


def no_facts(stated: Disclosure, given: Given) -> str:
    return "weights"


@pytest.mark.parametrize("method", METHODS)
def test_every_method_states_what_leaves_a_device_and_has_its_facts(method: str) -> None:
    assert method in FACTS
    stated = disclosed(method=method)
    assert not stated.differentially_private
    facts = facts_of(method, stated, load({"method": method}).settings.model_dump().get)
    assert facts is not None
    assert facts.spoken
    assert facts.sent
    assert all(sentence.endswith(".") for sentence in (*facts.protected, *facts.sent))
    assert bool(facts.carries) != (stated.images or stated.payload == "synthetic batches")


@pytest.mark.parametrize(
    ("method", "chosen", "fields"),
    [
        (
            "feddm",
            "feddm.start=real",
            {"began_as": "real examples", "unchanged": False, "class_counts": False},
        ),
        (
            "feddm",
            "feddm.start=noise feddm.iterations=0",
            {"began_as": "noise", "unchanged": False},
        ),
        ("feddm", "feddm.start=real feddm.iterations=0", {"unchanged": True}),
        ("feddm", "feddm.start=smooth feddm.iterations=0", {"began_as": "noise"}),
        ("feddm", "feddm.start=mean", {"began_as": "class means", "unchanged": False}),
        ("feddm", "feddm.start=mix:2 feddm.iterations=0", {"began_as": "real examples"}),
        ("feddm", "feddm.image_weighting=counts", {"class_counts": True}),
        (
            "feddm",
            "feddm.mechanism=feature privacy.noise_multiplier=1 privacy.counts=public",
            {"began_as": "noise", "differentially_private": True, "labels": True},
        ),
        ("real", "", {"payload": "real images", "unchanged": True, "update": False}),
        ("fedsynth", "", {"began_as": "noise", "update": True, "labels": True}),
        ("fedsynth", "fedsynth.start=statistics", {"began_as": "class means"}),
        ("topk", "", {"payload": "part of an update", "update": True}),
        ("lowrank", "", {"payload": "factors of an update", "update": True}),
        ("fedsynth", "fedsynth.start=shared", {"began_as": "noise", "labels": True}),
        ("fedsynth", "fedsynth.start=shared fedsynth.labels=fixed", {"labels": False}),
        (ADAM, "", {"payload": "weights", "update": True, "labels": False}),
    ],
)
def test_what_leaves_a_device_follows_the_settings(
    method: str, chosen: str, fields: dict[str, Any]
) -> None:
    stated = asdict(disclosed(method=method, set=chosen))
    assert fields.items() <= stated.items()


@pytest.mark.extended
def test_the_record_holds_it_and_the_report_goes_by_the_record(small: Small) -> None:
    record = run(small(rounds=1, set="feddm.start=real feddm.image_weighting=counts"))
    path = record.directory / "provenance.json"
    provenance = json.loads(path.read_text())
    stated = disclosed(set="feddm.start=real feddm.image_weighting=counts")
    assert provenance["privacy"] == asdict(stated)
    page = written(record).text
    assert "do not call that private" in page

    provenance["privacy"] = asdict(replace(stated, began_as="noise"))
    path.write_text(json.dumps(provenance))
    assert "No real image left a device" in written(record).text


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
    assert facts_of(ADAM, weights, nothing) == facts_of("fedavg", weights, nothing)


def test_a_method_of_one_s_own_names_its_facts_or_has_its_class_and_its_settings_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = Method("mine", "mine:Strategy", "mine:Client", "mine:Settings")
    monkeypatch.setattr("nectar.report.facts.resolve", lambda name: own)
    stated = Disclosure("weights", update=True)
    plain = facts_of("mine:METHOD", stated, nothing)
    assert plain is not None
    assert (plain.spoken, plain.carries) == ("Strategy", "weights")
    assert plain.sent[0].startswith("Sites sent weights, a function of private data")

    own = replace(own, facts=f"{__name__}:own_facts")
    monkeypatch.setattr("nectar.report.facts.load", {f"{__name__}:own_facts": own_facts}.get)
    assert facts_of("mine:METHOD", stated, nothing) == Facts(
        "Mine", sent=("My weights were sent.",)
    )
    monkeypatch.setattr("nectar.report.facts.load", lambda path: no_facts)
    with pytest.raises(ConfigError, match=r"own_facts must return nectar\.report\.facts\.Facts"):
        facts_of("mine:METHOD", stated, nothing)
