"""A method that trains as another one does takes over what files say of the other."""

from __future__ import annotations

from typing import Self

import pytest
from pydantic import field_validator, model_validator

from common.config.loading import load
from common.errors import ConfigError
from common.methods import METHODS, Method
from common.settings.base import setting
from common.settings.fedavg import FedAvgSettings
from common.settings.feddm import FedDMSettings
from common.settings.sections import PrivacySettings


class VariantSettings(FedAvgSettings):
    """FedAvg's settings and one more."""

    server_momentum: float = setting(0.9, "the server's momentum", ge=0, lt=1)


class NarrowSettings(FedAvgSettings):
    """FedAvg's settings within narrower bounds, and what its own validators make of them."""

    lr: float = setting(0.1, "the rate", gt=0, le=0.5)
    batch: int = setting(8, "images a step", ge=1)
    damping: float = setting(0.5, "the part of a step that is taken", gt=0)

    @field_validator("batch")
    @classmethod
    def _a_power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError("its sums are trees,\n  so it takes powers of 2")
        return value

    @model_validator(mode="after")
    def _damped_enough(self) -> Self:
        if self.momentum + self.damping > 1.25:
            raise ValueError("momentum and damping may not come to more than 1.25.")
        return self


class NestedSettings(VariantSettings):
    """A variant of the variant."""


class BothSettings(FedDMSettings, FedAvgSettings):
    """Of sites that distil and train."""


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    own = METHODS["fedavg"]
    for cls in (VariantSettings, NestedSettings, NarrowSettings, BothSettings):
        name = cls.__name__.removesuffix("Settings").lower()
        monkeypatch.setitem(METHODS, name, Method(name, own.strategy, own.client, cls))


def test_it_takes_over_what_the_data_set_s_file_says_of_fedavg() -> None:
    """conf/dataset/digits.yaml tunes fedavg; the variant's own defaults would be 10 epochs at 0.01."""
    tuned = load({"method": "fedavg"})
    variant = load({"method": "variant"})
    assert variant.settings.model_dump() == tuned.settings.model_dump() | {"server_momentum": 0.9}
    assert variant.origin["variant.lr"] == tuned.origin["fedavg.lr"]
    assert load(variant.to_run_config()).digest() == variant.digest()


def test_its_own_value_wins_and_the_nearest_parent_s_comes_first() -> None:
    given = {"method": "nested", "set": "variant.lr=0.5 nested.epochs=7 fedavg.batch=32"}
    settings = load(given).settings
    assert isinstance(settings, NestedSettings)
    assert (settings.lr, settings.epochs, settings.batch) == (0.5, 7, 32)


def test_nothing_flows_back() -> None:
    assert (
        load({"method": "fedavg", "set": "variant.lr=0.5"}).settings
        == load({"method": "fedavg"}).settings
    )


def sentence(method: str, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load({"method": method, "set": text})
    return str(caught.value)


def test_a_wrong_value_is_still_refused_once_and_where_it_was_given() -> None:
    message = sentence("variant", "fedavg.lr=-1")
    assert message == "fedavg.lr=-1 on the command line must be a number, above 0."


#: what FedAvg takes and the narrow method does not: by its bound, its field's validator, its whole's
TOO_MUCH = ("fedavg.lr=0.75", "fedavg.batch=12", "fedavg.momentum=0.9")


@pytest.mark.parametrize("given", TOO_MUCH)
@pytest.mark.parametrize("method", ["fedavg", "variant", "flwr.serverapp.strategy:FedAvg", "feddm"])
def test_a_method_that_is_not_in_use_refuses_nothing_that_it_took_over(
    method: str, given: str
) -> None:
    config = load({"method": method, "set": given})
    assert load(config.to_run_config()) == config


def test_what_is_given_to_a_method_that_is_not_in_use_is_still_checked() -> None:
    """Its own value beside one that it takes over and refuses: the own one is told, if it is wrong by itself."""
    assert sentence("fedavg", "fedavg.lr=0.75 narrow.lr=0.6").startswith("narrow.lr=0.6 on the")
    assert sentence("fedavg", "fedavg.lr=0.75 narrow.batch=12").startswith("narrow.batch=12 on")
    assert load({"method": "fedavg", "set": "fedavg.lr=0.75 narrow.batch=16"})
    assert load({"method": "fedavg", "set": "fedavg.momentum=0.9 narrow.damping=0.5"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            "fedavg.lr=0.75",
            "narrow.lr=0.75 on the command line must be a number, above 0, at most 0.5.",
        ),
        (
            "fedavg.batch=12",
            "narrow.batch=12 on the command line must be a whole number, at least 1: its sums are trees, so it takes "
            "powers of 2.",
        ),
        (
            "narrow.batch=half",
            "narrow.batch='half' on the command line must be a whole number, at least 1.",
        ),
        ("fedavg.momentum=0.9", "narrow: momentum and damping may not come to more than 1.25."),
    ],
)
def test_the_method_in_use_refuses_what_it_took_over_in_its_own_words(
    given: str, said: str
) -> None:
    assert sentence("narrow", given) == said


@pytest.mark.parametrize(
    ("may", "words"),
    [
        (["head"], "model.train=head"),
        (["plain"], "variant.class_weights=balanced"),
        (["averages"], "federation.robust=median"),
        (["summed", "averages"], "federation.secret=on"),
    ],
)
def test_what_a_method_may_it_says_itself_and_inherits_not(
    monkeypatch: pytest.MonkeyPatch, may: list[str], words: str
) -> None:
    own, asked = METHODS["fedavg"], {"method": "variant", "set": words}
    assert load({"method": "fedavg", "set": words.replace("variant.", "fedavg.")})
    assert "choose one of" in sentence("variant", words)
    says = dict.fromkeys(may, True)
    method = Method("variant", own.strategy, own.client, VariantSettings, **says)  # type: ignore[arg-type]
    monkeypatch.setitem(METHODS, "variant", method)
    assert load(asked).method == "variant"


def test_a_method_that_distils_and_trains_has_the_settings_of_both() -> None:
    """No name means two things: what the data set's file says of either holds, and each is set for itself."""
    assert not FedDMSettings.model_fields.keys() & FedAvgSettings.model_fields.keys()
    both = load({"method": "both", "set": "both.dsa=flip both.augment=flip_crop both.ipc=3"})
    feddm, fedavg = (load({"method": one}).settings.model_dump() for one in ("feddm", "fedavg"))
    stated = {"dsa": "flip", "augment": "flip_crop", "ipc": 3}
    assert both.settings.model_dump() == fedavg | feddm | stated


def test_it_is_private_where_both_are() -> None:
    both = BothSettings(mechanism="feature", start="noise", counts_noise=1.0)
    message = both.unprotected(PrivacySettings(noise_multiplier=1.0, counts="one"))
    assert message.startswith("the steps of a site follow its number of examples")
