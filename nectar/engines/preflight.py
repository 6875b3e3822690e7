"""Checks before a federation starts: the model, the data, their division."""

from __future__ import annotations

from logging import getLogger

import torch

from common.config.resolved import Config
from common.division import Division
from common.learning.compute import use_threads
from common.methods import require_taken, resolve
from common.models.registry import KINDS
from common.settings.sections import kind_of
from nectar.records.outputs import require_room
from server_app.app import Start, prepare
from server_app.tracking import require_tracker


def check_kind(config: Config) -> None:
    """Check that the methods support this kind of data; only a user's data set has to be read for that.

    Raises
    ------
    NectarError
        If the data set is text, or is not described in full.
    """
    disclosures = [settings.disclosure() for settings in config.methods.values()]
    names = (config.method, *config.inner)
    images = any(found is not None and found.images for found in disclosures)
    choosy = any(set(resolve(name).takes) != set(KINDS) for name in names)
    if images or (not kind_of(config.dataset) and choosy):
        run = Division(config).run
        for name in names:
            require_taken(name, run.info.kind, run.info.name)
    if images:
        _ = run.image_shape


def _look_at_sites(division: Division) -> None:
    """Read the folders of simulated sites, and the data that the server evaluates on."""
    _ = division.site_datasets
    for sentence in division.shared_groups:
        getLogger("flwr").warning("%s", sentence)
    if division.config.evaluation.on in ("server", "both"):
        _ = division.dataset


def check(config: Config, *, log_weights: bool = False) -> Start:
    """Build, load and divide what ``config`` asks for, once; return it for a run in this process.

    Data sets are downloaded and prepared for sharing now, before many processes need them. ``log_weights``: log
    which file the initial weights come from.

    Raises
    ------
    NectarError
        If no record can be made, the tracker is not installed, the data are not of the method's kind or lack the
        classes for its measure, the model does not fit them, the data set or its partition cannot be had, or the
        strategy cannot be constructed.
    """
    require_room(config)
    require_tracker(config.track)
    check_kind(config)
    threads = torch.get_num_threads()
    try:
        use_threads(
            config.compute.server_cores
        )  # as in the run, so that random draws are the same to the bit
        start = prepare(config, tell=log_weights)
        if config.site_places:
            _look_at_sites(start.division)
        else:
            start.division.partition(config.federation.sites)
    finally:
        torch.set_num_threads(threads)
    return start
