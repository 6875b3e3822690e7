"""`nectar submit`: run a federation at a SuperLink that is there, and watch it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common.errors import ConfigError, one_line
from nectar.arguments import (
    CaFile,
    ConfigFile,
    Connection,
    Insecure,
    Words,
    flag,
    next_step,
    submitter,
    typed_command,
)
from nectar.engines.flower.app import project
from server_app.run_directory import REPORT, RunDirectory

if TYPE_CHECKING:
    from nectar.engines.flower.connection import Connection as Link
    from nectar.engines.remote.submission import Submission

HELP = """\
Checks the configuration, hands the app to the SuperLink, shows the run's log and, at its end, says where the record
lies: on the ServerApp's machine. The exit code is 0 only if the run completed. Ctrl-C ends the watching, not the run.

A CONNECTION is a name in Flower's config.toml ([superlink.NAME] with address and root-certificates), or HOST:PORT with
--ca FILE. output-dir is a path on the server, data-dir one on every machine that reads a shared data set; both are
absolute, and left out each machine has its own. Paths in a file of settings are not the server's, and stay here.
resume=RECORD-ID continues a run whose record lies on the server, with round=N or round=best after that checkpoint.

\b
nectar submit lab fedavg rounds=3
nectar submit 192.0.2.7:8000 --ca keys/ca.crt output-dir=/srv/runs
"""


def main(
    name: Connection,
    words: Words = None,
    config_file: ConfigFile = None,
    ca: CaFile = None,
    insecure: Insecure = False,
    follow: Annotated[
        int | None,
        typer.Option(metavar="RUN", min=0, help="watch a run that was submitted earlier"),
    ] = None,
    stop: Annotated[int | None, typer.Option(metavar="RUN", min=0, help="end a run")] = None,
    verbose: Annotated[bool, flag("--verbose", "show every line of Flower's log")] = False,
) -> int:
    """Submit what the words say; return 0 if it completed, 1 if not, 128 + n if signal n ended the watching."""
    from nectar.engines.flower.connection import connect
    from nectar.engines.preflight import check_kind
    from nectar.engines.processes import Interrupted
    from nectar.engines.remote.submission import parse_submission
    from nectar.engines.remote.watching import watch

    settings = words or []
    if "=" in name:
        raise ConfigError(
            "nectar submit needs a connection first: a name, or HOST:PORT --ca ca.crt."
        )
    if settings and (follow is not None or stop is not None):
        raise ConfigError("--follow and --stop are of a run that was submitted: no settings.")
    if stop is not None:  # whatever is wrong with the settings that a run would have
        return _stop(connect(name, ca, insecure=insecure), str(stop))
    # Options name files of this machine, and what is typed goes to every site.
    submission = parse_submission(settings, config_file, typed_command(["submit", name, *settings]))
    if not submission.resumes:
        check_kind(submission.config)
    project()  # refused, if it is, before any question to the server
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
    """Print where the run's record is, which may be on this machine."""
    print(f"the record lies where the ServerApp runs: {place}", flush=True)
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
    """Describe how a run that goes on is watched again or ended; at a terminal, ask."""
    print(f"\nrun {run} goes on at {connection.address}.", flush=True)
    if sys.stdin.isatty() and sys.stdout.isatty():
        try:
            answer = input("Stop it too? [y/N] ")
        except (EOFError, KeyboardInterrupt):
            answer = ""
        if answer.strip().lower() in ("y", "yes"):
            _stop(connection, run)
            return
    print(
        f"Watch it again: {again} --follow {run}\nEnd it:         {again} --stop {run}", flush=True
    )


def _stop(connection: Link, run: str) -> int:
    with connection.superlink() as superlink:
        superlink.stop(run)
    print(f"run {run} was stopped.")
    return 0
