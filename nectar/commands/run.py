"""`nectar run`: a federation in one process, for quick work, notebooks, tests and one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from logging import INFO, Formatter, LogRecord, getLogger
from pathlib import Path
from typing import TYPE_CHECKING

import click

from common.storage.files import write_text
from nectar.arguments import next_step, parse_arguments, resolved, typed_command, with_fitting_sites
from nectar.command_line import command
from nectar.options import config_file_option, settings_words
from nectar.records.outputs import with_recorded

if TYPE_CHECKING:
    from common.sites import Site
    from server_app.run_directory import RunDirectory

HELP = """\
Simulates a federation in one process, with the same apps, messages and results as a deployment. Larger runs simulate
several sites at a time in worker processes (compute.workers). Progress and the remaining time are shown from the first
site's first steps on; without a terminal, once a minute.

\b
nectar run                             FedDM on digits, 10 sites
nectar run fedavg partition.alpha=0.01 seed=3
nectar run compute.workers=4           four sites at a time; 1: one
nectar run resume=latest               continue after the last checkpoint
"""


@command(HELP)
@click.pass_context
@settings_words
@config_file_option
@click.option(
    "--note-record",
    metavar="FILE",
    help="write the record's directory into FILE as soon as it exists, for scripts",
)
@click.option("--dry-run", "dry_run", is_flag=True, help="print the settings, run nothing")
def main(
    ctx: click.Context,
    words: tuple[str, ...],
    config_file: str | None,
    note_record: str | None,
    dry_run: bool,
) -> int:
    """Run a federation; return 0."""
    asked_for = typed_command(ctx.obj) | parse_arguments(words, file=config_file)
    config = resolved(with_recorded(asked_for))  # raises ConfigError before torch is imported
    from nectar.engines.local_run import run_here
    from nectar.engines.pool.grid import devices_asked
    from nectar.engines.preflight import check
    from nectar.engines.progress import Progress, progress_shown

    log_plainly()
    config = with_fitting_sites(config)
    start = check(config, log_weights=not dry_run)
    if dry_run:
        print(config.dump_yaml(origins=True))
        return 0

    class Noted(Progress):
        def begun(self, record: RunDirectory, sites: Sequence[Site]) -> None:
            super().begun(record, sites)
            if note_record:
                write_text(Path(note_record), f"{record.directory}\n")

    progress = Noted(config.rounds, devices_asked(config))

    with progress_shown(progress):
        record = run_here(config, progress, progress, start=start)
    print(next_step(record.directory), flush=True)
    return 0


def log_plainly() -> None:
    """Let Flower's handler write lines without colour codes, and informational ones without their level."""
    for handler in getLogger("flwr").handlers:
        if hasattr(handler, "colored"):
            setattr(handler, "format", _plain)  # noqa: B010


def _plain(record: LogRecord) -> str:
    mark = "" if record.levelno == INFO else f"{record.levelname}: "
    return f"{mark}{Formatter().format(record)}"
