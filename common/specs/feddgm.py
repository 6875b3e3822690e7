"""What FedDGM's sites and server agree on: which surrogate a site trains."""

from __future__ import annotations

from common.learning.run import Run
from common.settings.feddgm import FedDGMSettings, surrogate


def settings_of(run: Run) -> FedDGMSettings:
    """Return the method's settings."""
    return run.settings(FedDGMSettings)


def surrogate_of(run: Run, site: str) -> str:
    """Return the name of the architecture that ``site`` trains; empty if it is the run's own."""
    name = surrogate(settings_of(run).depth_of(site))
    return name if name in run.architectures else ""
