"""What a run that asks for differential privacy must not have, and what it may."""

from __future__ import annotations

import re
import sys
from types import ModuleType

import pytest

from common.config.loading import load
from common.errors import ConfigError
from common.methods import METHODS, Method
from common.settings.feddm import FedDMSettings

pytestmark = pytest.mark.promise(
    "What leaves a site is not a private image",
    "A setting that would send something past the noise is refused before a run",
)

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


def test_a_beta_vae_has_no_private_training() -> None:
    with pytest.raises(ConfigError, match="source=vae has no private training"):
        load({"method": "fedssyn", "set": "fedssyn.source=vae fedssyn.noise_multiplier=1"})


def test_every_method_that_claims_it_is_among_these() -> None:
    assert {name for name, method in METHODS.items() if method.private} == {*HOLD, "feddm"}


REFUSED = {
    "no mechanism": ("real", PUBLIC, "method=real does not have: choose one of feddm, fedavg, "),
    "central": ("central", PUBLIC, "method=central does not have"),
    "server": ("server", PUBLIC, "method=server does not have"),
    "means of images": ("fedmix", PUBLIC, "means of 10 of its images, which no noise is put on"),
    "a raw gradient": ("scaffold", f"{PUBLIC} scaffold.option=I", "set option=II"),
    "inherited by FedPVR": ("fedpvr", f"{PUBLIC} fedpvr.option=I", "set option=II"),
    "latents of a batch": ("fedgen", f"{PUBLIC} fedgen.drawn=32", "set drawn=0"),
    "counts of classes": (
        "fedgen",
        f"{ASKED} privacy.examples=100",
        "their number of examples of every class: set privacy.counts=public",
    ),
    "which classes a site knows": (
        "feddgm",
        f"{ASKED} privacy.examples=100 feddgm.classes=known",
        "their number of examples of every class",
    ),
    "two clips": (
        "fedavg",
        f"{PUBLIC} fedavg.clip_norm=1",
        "clip_norm=1 would scale the noisy sum",
    ),
    "steps that tell a count": ("fedavg", ASKED, "set privacy.examples to the number"),
    "a generator without noise": ("fedssyn", PUBLIC, "set fedssyn.noise_multiplier above 0"),
    "real images given away": (
        "fedssyn",
        f"{PUBLIC} fedssyn.source=real",
        "source=real gives real images away",
    ),
    "images in the proportions of counts": (
        "fedssyn",
        f"{ASKED} privacy.examples=9 fedssyn.noise_multiplier=1",
        "set privacy.counts=public",
    ),
    "gradients for a study": (
        "fedssyn",
        f"{PUBLIC} fedssyn.source=none fedssyn.diagnostics=on",
        "set diagnostics=off",
    ),
    "an inner method's": (
        "fedssyn",
        f"{PUBLIC} fedssyn.source=none fedssyn.inner=scaffold scaffold.option=I",
        "method=scaffold: option=I",
    ),
    "class means to start from": (
        "fedsynth",
        f"{PUBLIC} fedsynth.start=statistics",
        "set start=noise",
    ),
    "labels by counts": ("fedsynth", f"{ASKED} privacy.examples=9", "privacy.counts=public"),
    "a second training": ("fedsynth", PUBLIC, "fidelity=off, or objective=update"),
    "means without noise": ("feddpms", f"{PUBLIC} feddpms.sigma=0", "set sigma above 0"),
    "classes in the order of counts": ("feddpms", f"{ASKED} privacy.examples=9", "counts=public"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_leave_past_the_noise_is_refused(case: str) -> None:
    method, text, message = REFUSED[case]
    with pytest.raises(ConfigError, match=re.escape(message)) as told:
        load({"method": method, "set": text})
    assert str(told.value).startswith("privacy.noise_multiplier=1 ")
    assert "\n" not in str(told.value)


def test_a_method_of_ones_own_inherits_no_claim() -> None:
    """SCAFFOLD's settings and all, but what its client sends is its own: only its author can say that it holds."""
    with pytest.raises(ConfigError, match="method=pulled_scaffold:METHOD does not have"):
        load({"method": "pulled_scaffold:METHOD", "set": PUBLIC})
    assert load({"method": "flwr.serverapp.strategy:FedAdam", "set": PUBLIC}).privacy.active


def test_without_noise_all_of_it_is_a_plain_run() -> None:
    for method, text, _ in REFUSED.values():
        plain = text.replace(ASKED, "privacy.noise_multiplier=0")
        assert not load({"method": method, "set": plain}).privacy.active


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
    ("method", "name"),
    [
        ("fedavg", "privacy.noise_multiplier"),
        ("feddm", "feddm.counts_noise"),
        ("fedssyn", "fedssyn.noise_multiplier"),
        ("feddpms", "feddpms.sigma"),
    ],
)
@pytest.mark.parametrize("value", ["1e-160", "0.009", "10001", "-1"])
def test_noise_that_is_a_slip_is_refused(method: str, name: str, value: str) -> None:
    """With 1e-160 a site would compute for ever, its ledger locked: such a run is refused wherever it is read."""
    with pytest.raises(ConfigError, match=rf"{name}=.* must be 0, or a number from 0\.01 to 10000"):
        load({"method": method, "set": f"{name}={value}"})


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
