"""What a run that asks for differential privacy must not have, and what it may."""

from __future__ import annotations

import sys
import tomllib
from types import ModuleType

import pytest
from places import ROOT

from common.config.loading import load
from common.errors import ConfigError
from common.methods import METHODS, Method
from common.settings.feddm import FedDMSettings

ASKED = "privacy.noise_multiplier=1"
PUBLIC = f"{ASKED} privacy.counts=public"

HOLD = {
    "fedavg": "",
    "fedprox": "",
    "fednova": "",
    "scaffold": "",
    "feddyn": "",
    "fedpvr": "",
    "moon": "",
    "fedgen": "",
    "fedper": "evaluation.on=none",
    "ditto": "evaluation.on=none",
    "finetune": "evaluation.on=none",
    "dense": "",
    "feddf": "",
    "fedmd": "",
    "fedvae": "",
    "feddpms": "",
    "feddgm": "",
    "local": "",
    "fedsynth": "fedsynth.fidelity=off",
    "masking": "",
    "topk": "",
    "lowrank": "",
    "ridge": "",
    "fedssyn": "fedssyn.noise_multiplier=1.906",
}


@pytest.mark.parametrize("method", HOLD)
def test_what_holds_is_taken(method: str) -> None:
    config = load({"method": method, "set": f"{PUBLIC} {HOLD[method]}"})
    assert config.privacy.active
    assert not load({"method": method}).privacy.active


def test_every_method_that_claims_it_is_among_these() -> None:
    assert {name for name, method in METHODS.items() if method.private} == {*HOLD, "feddm"}


def test_a_flower_strategy_may_be_private() -> None:
    assert load({"method": "flwr.serverapp.strategy:FedAdam", "set": PUBLIC}).privacy.active


def test_without_noise_all_of_it_is_a_plain_run() -> None:
    table = tomllib.loads((ROOT / "tests" / "refusals" / "settings.toml").read_text("utf-8"))
    for row in table["past-the-noise"]["rows"].values():
        plain = row["words"].replace(ASKED, "privacy.noise_multiplier=0")
        assert not load({**row["run"], "set": plain}).privacy.active


class OwnSettings(FedDMSettings):
    """Those of a method that inherits FedDM's."""


def test_a_method_of_ones_own_is_told_to_set_its_own_section(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known, module = METHODS["feddm"], ModuleType("a_users_private_settings")
    module.OwnSettings = OwnSettings  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    path = f"{module.__name__}:OwnSettings"
    method = Method("mine", known.strategy, known.client, path, private=True)
    monkeypatch.setitem(METHODS, "mine", method)
    for words, message in (
        ("mine.mechanism=none", "set mine.mechanism=feature or mine.mechanism=gradient."),
        ("mine.mechanism=feature mine.start=real", "set mine.start=noise."),
    ):
        with pytest.raises(ConfigError) as refused:
            load({"method": "mine", "set": f"{PUBLIC} {words}"})
        assert str(refused.value).endswith(message)


@pytest.mark.parametrize(
    ("text", "noises"),
    [
        ("method=fedavg", set()),
        ("method=fedavg privacy.noise_multiplier=1.5 privacy.counts=public", {1.5}),
        (
            "method=feddm feddm.mechanism=feature feddm.counts_noise=9 privacy.noise_multiplier=2",
            {2, 9},
        ),
        ("method=fedssyn fedssyn.noise_multiplier=1.9", {1.9}),
        ("method=fedssyn", set()),
        ("method=feddpms model.name=vae", None),
        ("method=feddpms model.name=vae feddpms.sigma=0", set()),
        ("method=fedssyn fedssyn.inner=feddpms model.name=vae", None),
    ],
)
def test_a_run_knows_which_noise_its_sites_are_charged_for(
    text: str, noises: set[float] | None
) -> None:
    words = dict(word.split("=", 1) for word in text.split())
    rest = " ".join(f"{k}={v}" for k, v in words.items() if k != "method")
    assert load({"method": words["method"], "set": rest}).noises == noises
