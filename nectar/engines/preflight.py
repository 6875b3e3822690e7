"""What can be known to fail before a federation is started: the model, the data, their division."""

from __future__ import annotations

from common.config.resolved import Config
from common.division import Division
from server_app.app import make_strategy
from server_app.start import starting_weights
from server_app.tracking.tracked import require_tracker


def check_kind(config: Config) -> None:
    """See that a method whose sites send images learns from some; only a set of one's own has to be read for it.

    Raises
    ------
    NectarError
        If the data set is text, or is not described in full.
    """
    told = [settings.disclosure() for settings in config.methods.values()]
    if any(disclosed is not None and disclosed.images for disclosed in told):
        _ = Division(config).run.image_shape


def _look_at_sites(division: Division) -> None:
    """Read the folders of simulated sites, and what the server is to evaluate on."""
    _ = division.site_datasets
    if division.config.evaluation.on in ("server", "both"):
        _ = division.dataset


def check(config: Config) -> None:
    """Build, load and divide what ``config`` asks for, once.

    A data set that has to be downloaded or laid out for sharing is so here, before many processes want it.

    Raises
    ------
    NectarError
        If the tracker is not installed, the data are not of the method's kind, the model does not fit them, the data
        set or its partition cannot be had, or the strategy cannot be constructed.
    """
    require_tracker(config.track)
    check_kind(config)
    division = Division(config)
    starting_weights(division.run, tell=False)
    if config.images.sites:
        _look_at_sites(division)
    else:
        division.partition(config.federation.sites)
    make_strategy(division.run)
