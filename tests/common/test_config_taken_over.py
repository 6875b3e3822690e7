"""A method that trains as another one does takes over what files say of the other."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from common.config import load
from common.errors import ConfigError
from common.methods import METHODS, Method
from common.settings.base import setting
from common.settings.fedavg import FedAvgSettings


class VariantSettings(FedAvgSettings):
    """FedAvg's settings and one more."""

    server_momentum: float = setting(0.9, "the server's momentum", ge=0, lt=1)


class NestedSettings(VariantSettings):
    """A variant of the variant."""


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("a_users_settings")
    module.VariantSettings = VariantSettings  # type: ignore[attr-defined]
    module.NestedSettings = NestedSettings  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_users_settings", module)
    for name, cls in (("variant", "VariantSettings"), ("nested", "NestedSettings")):
        own = METHODS["fedavg"]
        method = Method(name, own.strategy, own.client, f"a_users_settings:{cls}")
        monkeypatch.setitem(METHODS, name, method)


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


def test_a_wrong_value_is_still_refused() -> None:
    with pytest.raises(ConfigError, match=r"fedavg\.lr=-1"):
        load({"method": "variant", "set": "fedavg.lr=-1"})
