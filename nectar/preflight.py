"""What can be known to fail before a federation is started: the model, the data, their division."""

from __future__ import annotations

from common.config import Config
from common.run import Run
from server_app.app import make_strategy
from server_app.start import starting_weights


def check_kind(config: Config) -> None:
    """See that a method whose sites send images learns from some; only a set of one's own has to be read for it.

    Raises
    ------
    NectarError
        If the data set is text, or is not described in full.
    """
    told = [settings.disclosure() for settings in config.methods.values()]
    if any(disclosed is not None and disclosed.images for disclosed in told):
        _ = Run(config).image_shape


def _look_at_sites(run: Run) -> None:
    """Read the folders of simulated sites, and what the server is to evaluate on."""
    _ = run.site_datasets
    if run.config.evaluation.on in ("server", "both"):
        _ = run.dataset


def check(config: Config) -> None:
    """Build, load and divide what ``config`` asks for, once.

    A data set that has to be downloaded or laid out for sharing is so here, before many processes want it.

    Raises
    ------
    NectarError
        If the data are not of the method's kind, the model does not fit them, the data set or its partition cannot
        be had, or the strategy cannot be constructed.
    """
    check_kind(config)
    run = Run(config)
    starting_weights(run, tell=False)
    if config.images.sites:
        _look_at_sites(run)
    else:
        run.partition(config.federation.clients)
    make_strategy(run)
