"""The registry of methods: a new one is one line. Nothing is imported until asked for."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, cast

from common.errors import ConfigError
from common.settings.base import Settings


@dataclass(frozen=True)
class Method:
    """A method's parts, as import paths ``package.module:Class``.

    A method whose devices train as FedAvg's names FedAvg's client, and its settings inherit FedAvgSettings.

    Parameters
    ----------
    strategy, client, settings : str
        The Strategy, the DeviceClient and the Settings.
    facts : str
        For a method of the user's own, the function that words what a report says of it, as those of
        nectar.report.facts do; empty where there is none, and for the methods below, whose facts lie there.
    """

    strategy: str
    client: str
    settings: str
    facts: str = ""


METHODS: dict[str, Method] = {
    "feddm": Method(
        "strategies.feddm:FedDM",
        "client_app.feddm:FedDMClient",
        "common.settings.feddm:FedDMSettings",
    ),
    "real": Method(
        "strategies.real:Real", "client_app.real:RealClient", "common.settings.real:RealSettings"
    ),
    "fedavg": Method(
        "strategies.fedavg:FedAvg",
        "client_app.fedavg:FedAvgClient",
        "common.settings.fedavg:FedAvgSettings",
    ),
    "fedsynth": Method(
        "strategies.fedsynth:FedSynth",
        "client_app.fedsynth:FedSynthClient",
        "common.settings.fedsynth:FedSynthSettings",
    ),
    "masking": Method(
        "strategies.masking:Masking",
        "client_app.masking:MaskingClient",
        "common.settings.masking:MaskingSettings",
    ),
    "topk": Method(
        "strategies.topk:TopK", "client_app.topk:TopKClient", "common.settings.topk:TopKSettings"
    ),
}

FOREIGN_CLIENT = "fedavg"
"""The method whose devices and local training serve a Flower strategy named by import path."""


def is_import_path(name: str) -> bool:
    """Tell a strategy's import path, ``package.module:Class``, from a method's name."""
    return ":" in name


def section(name: str) -> str:
    """Return the section that holds a method's settings: its own name, or for a path FedAvg's."""
    return FOREIGN_CLIENT if is_import_path(name) else name


def resolve(name: str) -> Method:
    """Return the parts of a method, given by its name or by a Flower strategy's import path."""
    if not is_import_path(name):
        return METHODS[name]
    own = METHODS[FOREIGN_CLIENT]
    return Method(strategy=name, client=own.client, settings=own.settings)


def settings_class(name: str) -> type[Settings]:
    """Import the settings class of a method."""
    return cast("type[Settings]", load(resolve(name).settings))


def load(path: str) -> Any:
    """Import what an import path names.

    Raises
    ------
    ConfigError
        If the module cannot be imported or does not have the name.
    """
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's own module may raise anything while it is imported
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"{path} cannot be imported: {reason}.") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise ConfigError(f"{path} does not exist: {module_name} has no {attribute!r}.") from None
