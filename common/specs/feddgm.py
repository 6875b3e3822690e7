"""What FedDGM's sites and server agree on: which surrogate a site trains."""

from __future__ import annotations

from common.errors import FederationError
from common.learning.run import Run
from common.settings.feddgm import FedDGMSettings, surrogate


def settings_of(run: Run) -> FedDGMSettings:
    """Return the method's settings.

    Raises
    ------
    FederationError
        If they are another method's.
    """
    settings = run.config.settings
    if not isinstance(settings, FedDGMSettings):
        raise FederationError(
            f"FedDGM needs settings that inherit FedDGMSettings, those of {run.config.method} are "
            f"{type(settings).__name__}: let them inherit it"
        )
    return settings


def surrogate_of(run: Run, site: str) -> str:
    """Return the name of the architecture that ``site`` trains; empty where it is the run's own."""
    name = surrogate(settings_of(run).depth_of(site))
    return name if name in run.architectures else ""
