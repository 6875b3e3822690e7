"""What can be known to fail before a federation is started: the model, the data, their division."""

from __future__ import annotations

from common.config import Config
from common.run import Run
from server_app.app import make_strategy


def check(config: Config) -> None:
    """Build, load and divide what ``config`` asks for, once.

    A data set that has to be downloaded or laid out for sharing is so here, before many processes want it.

    Raises
    ------
    NectarError
        If the model does not fit the images, the data set or its partition cannot be had, or the strategy cannot
        be constructed.
    """
    run = Run(config)
    run.build_model()
    run.partition(config.federation.clients)
    make_strategy(run)
