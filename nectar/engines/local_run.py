"""A federation on this machine, without Flower's processes, for `nectar run` and `nectar.run`."""

from __future__ import annotations

from collections.abc import Callable

from common.config.resolved import Config
from common.data.loading import clear_cache
from nectar.engines.alone import on_this_machine
from nectar.engines.flower.app import client_app
from nectar.engines.pool.grid import local_federation
from nectar.records.record_imports import note_parts
from server_app.app import Observer, Start, serve
from server_app.record import Record
from server_app.run_directory import ALONE
from server_app.tracking import OnRound


def run_here(
    config: Config,
    progress: Callable[[int, int], None] | None = None,
    observer: Observer | None = None,
    on_round: OnRound | None = None,
    start: Start | None = None,
) -> Record:
    """Run ``config``, which `nectar.engines.preflight.check` has passed, to its end; return its record.

    Parameters
    ----------
    progress : callable, optional
        Called with (sites done, sites of the round) after each site.
    observer : Observer, optional
        Notified of the record's directory and of each finished round.
    on_round : callable, optional
        A user's function, called with each round's line of metrics.jsonl; if it raises, a warning is logged.
    start : Start, optional
        The result of the check, with which the run starts.

    Raises
    ------
    NectarError
        If the run cannot start, or stops.
    """
    app = client_app()
    try:
        note_parts(config)
        with on_this_machine() as alone, local_federation(app, config, progress) as grid:
            record = serve(grid, config, observer, on_round, start)
            record.note(**{ALONE: alone() and not config.resume})
            return record
    finally:
        clear_cache()
