"""What can be known to fail before a federation is started: the model, the data, their division."""

from __future__ import annotations

from common.config import Config
from common.run import Run
from server_app.app import make_strategy


def check_kind(config: Config) -> None:
    """See that a method whose sites send images learns from some; no data are read.

    Raises
    ------
    NectarError
        If the data set is text, or is not described in full.
    """
    disclosed = config.settings.disclosure()
    if disclosed is not None and disclosed.images:
        _ = Run(config).image_shape


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
    run.build_model()
    run.partition(config.federation.clients)
    make_strategy(run)
