"""`nectar run`: a whole federation in this process, for quick work, notebooks, tests and one GPU."""

from __future__ import annotations

import importlib
import sys
import tomllib
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING

from common.config import load
from nectar.flower.job import require_app
from nectar.resume import with_recorded
from nectar.words import parse_words

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

SUMMARY = "run a federation inside this process"

USAGE = """\
Usage: nectar run [EXPERIMENT] [key=value ...]

Runs the apps and the messages of a federation without its processes, and gives the same numbers.

  nectar run                                  the default: FedDM on digits, 10 clients
  nectar run method=fedavg partition.alpha=0.01 seed=3
  nectar run resume=DIRECTORY                 continue a run behind its last checkpoint
"""

_APP = Path(__file__).resolve().parents[2]


def main(words: list[str]) -> int:
    """Run what ``words`` say; return the exit code."""
    run_config = with_recorded(parse_words(words))
    config = load(run_config)
    require_app(_APP)
    from nectar.local_grid import LocalGrid, server_context
    from nectar.preflight import check
    from server_app.app import app as server_app

    check(config)
    progress = _show_progress if sys.stderr.isatty() else None
    if progress is None:
        _log_without_colours()
    grid = LocalGrid(client_app(), config.federation.clients, run_config, progress=progress)
    server_app(grid, server_context(run_config))
    return 0


def client_app() -> ClientApp:
    """Return the ClientApp as Flower finds it: by its import path in pyproject.toml."""
    components = tomllib.loads((_APP / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "flwr"
    ]["app"]
    module, _, name = components["components"]["clientapp"].partition(":")
    app: ClientApp = getattr(importlib.import_module(module), name)
    return app


def _log_without_colours() -> None:
    """Keep Flower's colour codes out of a log file."""
    for handler in getLogger("flwr").handlers:
        if hasattr(handler, "colored"):
            handler.colored = False


def _show_progress(done: int, of: int) -> None:
    """Keep one line on the terminal up to date; it is wiped before the round's own line is logged."""
    end = "\r\033[K" if done == of else ""
    print(f"\r{done} of {of} devices{end}", end="", file=sys.stderr, flush=True)
