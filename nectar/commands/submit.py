"""`nectar submit`: run a federation at an existing SuperLink, and watch it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from common.errors import ConfigError, one_line
from nectar.arguments import next_step, submitter, typed_command
from nectar.command_line import command
from nectar.engines.flower.app import project
from nectar.options import (
    ca_option,
    config_file_option,
    connection,
    insecure_option,
    settings_words,
)
from server_app.run_directory import REPORT, RunDirectory

if TYPE_CHECKING:
    from nectar.engines.flower.connection import Connection as Link
    from nectar.engines.remote.submission import Submission

HELP = """\
Checks the configuration, sends the app to the SuperLink, shows the run's log and finally prints where the record is,
on the ServerApp's machine. The exit code is 0 only if the run completed. Ctrl-C stops watching; the run continues.

A CONNECTION is a name in Flower's config.toml ([superlink.NAME] with address and root-certificates), or HOST:PORT with
--ca FILE. output-dir is a path on the server, data-dir a path on every machine that reads a shared data set; both must
be absolute, and default to each machine's own. Paths in a --config file are local and are not sent.
resume=RECORD-ID continues a run whose record is on the server.

\b
nectar submit lab fedavg rounds=3
nectar submit 192.0.2.7:8000 --ca keys/ca.crt output-dir=/srv/runs
"""


@command(HELP)
@connection
@settings_words
@config_file_option
@ca_option
@insecure_option
@click.option(
    "--follow",
    metavar="RUN",
    type=click.IntRange(min=0),
    help="watch a run that was submitted before",
)
@click.option("--stop", metavar="RUN", type=click.IntRange(min=0), help="stop a run")
@click.option("--verbose", is_flag=True, help="show every line of Flower's log")
def main(
    name: str,
    words: tuple[str, ...],
    config_file: str | None,
    ca: str | None,
    insecure: bool,
    follow: int | None,
    stop: int | None,
    verbose: bool,
) -> int:
    """Submit a run and watch it; return 0 if it completed, 1 if not, 128 + n if signal n ended the watching."""
    from nectar.engines.flower.connection import connect
    from nectar.engines.preflight import check_kind
    from nectar.engines.processes import Interrupted
    from nectar.engines.remote.submission import parse_submission
    from nectar.engines.remote.watching import watch

    settings = list(words)
    if "=" in name:
        raise ConfigError(
            "nectar submit needs a connection first: a name, or HOST:PORT --ca ca.crt."
        )
    if settings and (follow is not None or stop is not None):
        raise ConfigError("--follow and --stop take no settings: the run was already submitted.")
    if stop is not None:  # before any setting is read, so that none can prevent it
        return _stop(connect(name, ca, insecure=insecure), str(stop))
    # The words are sent to every site; options are not, since they name local files.
    submission = parse_submission(settings, config_file, typed_command(["submit", name, *settings]))
    if not submission.resumes:
        check_kind(submission.config)
    project()  # raises before the server is contacted
    connection = connect(name, ca, insecure=insecure)
    run = _submit(connection, submission) if follow is None else str(follow)
    try:
        ended = watch(connection, run, verbose=verbose)
    except Interrupted as interrupted:
        options = [*(["--ca", ca] if ca else []), *["--insecure"] * insecure]
        _leave(connection, run, shlex.join(["nectar", "submit", name, *options]))
        return 128 + interrupted.number
    if ended.record:
        _print_record(Path(one_line(ended.record)))
    return 0 if ended.completed else 1


def _print_record(place: Path) -> None:
    """Print where the run's record is, and its report or the next command if it is on this machine."""
    print(f"the record is on the ServerApp's machine: {place}", flush=True)
    if (place / REPORT).is_file():
        print(f"its report: {place / REPORT}", flush=True)
    elif RunDirectory(place).is_there():
        print(next_step(place), flush=True)


def _submit(connection: Link, submission: Submission) -> str:
    from nectar.engines.flower.superlink import own_bundle
    from nectar.engines.preflight import check_kind
    from nectar.engines.remote.submission import resume_submission

    connection.wait(0)
    if submission.resumes:  # every node is sent the settings of the record again
        submission = resume_submission(connection, submission)
        check_kind(submission.config)
    print(f"submitting to {connection.address}: {submission}", flush=True)
    with connection.superlink() as superlink:
        run = superlink.start(own_bundle(), submission.run_config | submitter())
    print(f"run {run}", flush=True)
    return run


def _leave(connection: Link, run: str, again: str) -> None:
    """Print how to watch or stop the run, which continues; at a terminal, offer to stop it."""
    print(f"\nrun {run} continues at {connection.address}.", flush=True)
    if sys.stdin.isatty() and sys.stdout.isatty():
        try:
            answer = input("Stop it too? [y/N] ")
        except (EOFError, KeyboardInterrupt):
            answer = ""
        if answer.strip().lower() in ("y", "yes"):
            _stop(connection, run)
            return
    print(
        f"Watch it again: {again} --follow {run}\nStop it:        {again} --stop {run}", flush=True
    )


def _stop(connection: Link, run: str) -> int:
    with connection.superlink() as superlink:
        superlink.stop(run)
    print(f"run {run} stopped")
    return 0
