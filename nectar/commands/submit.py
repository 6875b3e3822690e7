"""`nectar submit`: run a federation at a SuperLink that is there, watch it, and bring its record home."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common.errors import ConfigError, NectarError
from nectar.arguments import (
    CaFile,
    ConfigFile,
    Connection,
    Insecure,
    RecordsHere,
    Replace,
    Without,
    Words,
    flag,
    submitter,
    to_flwr,
    typed_command,
)
from nectar.engines.flower.app import app_folder
from nectar.records.outputs import output_folder

if TYPE_CHECKING:
    from nectar.engines.flower.connection import Connection as Link
    from nectar.engines.remote.order import Order
    from nectar.engines.remote.watching import Watched

HELP = """\
Checks the configuration, hands the app to the SuperLink, shows the run's log and, at its end, fetches its record to
this machine. The exit code is 0 only if the run completed and its record came. Ctrl-C ends the watching, not the run.

A CONNECTION is a name in Flower's config.toml ([superlink.NAME] with address and root-certificates), or HOST:PORT with
--ca FILE. output-dir is a path on the server, data-dir one on every machine that reads a shared data set; both are
absolute, and left out each machine has its own. Paths in a file of settings are not the server's, and stay here.
resume=RECORD-ID continues a run whose record lies on the server, with round=N or round=best after that checkpoint.

\b
nectar submit lab fedavg rounds=3
nectar submit 192.0.2.7:8000 --ca keys/ca.crt output-dir=/srv/runs
"""


@dataclass(frozen=True)
class _Options:
    """What is beside the settings, as it is typed again in the lines that are printed."""

    ca: str | None
    insecure: bool
    output: str | None
    without: str

    def line(self, *words: str, fetching: bool = False) -> str:
        """Return the line of another command at the same connection; for one that fetches, with where to."""
        line = ["nectar", *words, *(["--ca", self.ca] if self.ca else [])]
        if fetching:
            line += ["--output", self.output] if self.output else []
            line += ["--without", self.without] if self.without else []
        return shlex.join([*line, *(["--insecure"] if self.insecure else [])])


def main(
    name: Connection,
    words: Words = None,
    config_file: ConfigFile = None,
    ca: CaFile = None,
    insecure: Insecure = False,
    output: RecordsHere = None,
    no_fetch: Annotated[
        bool, flag("--no-fetch", "leave the record on the server; `nectar fetch` brings it later")
    ] = False,
    without: Without = "",
    replace: Replace = False,
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
    from nectar.engines.remote.order import order_of
    from server_app.sending import LATEST, parts_of

    settings = words or []
    if "=" in name:
        raise ConfigError(
            "nectar submit needs a connection first: a name, or HOST:PORT --ca ca.crt."
        )
    if settings and (follow is not None or stop is not None):
        raise ConfigError("--follow and --stop are of a run that was submitted: no settings.")
    if stop is not None:  # whatever is wrong with the settings that a run would have
        with connect(name, ca, insecure=insecure) as connection:
            return _stop(connection, str(stop))
    options = _Options(ca, insecure, output, without)
    to = None if output is None else output_folder(output)
    # Options name files of this machine, and what is typed goes to every site.
    order = order_of(settings, config_file, typed_command(["submit", name, *settings]))
    left_out = parts_of(without)
    if not order.resumes:
        check_kind(order.config)
    app_folder()  # refused, if it is, before anything is asked
    with connect(name, ca, insecure=insecure) as connection:
        run = _submit(connection, order) if follow is None else str(follow)
        watched = _watch(connection, run, options.line("submit", name), verbose=verbose)
        if watched.outcome is None:
            return 128 + watched.signal
        if not no_fetch:
            again = ["fetch", name, watched.record or LATEST]
            if directory := watched.output_dir or order.output_dir:
                again.append(f"output-dir={directory}")
            line = options.line(*again, fetching=True)
            if not _fetch(connection, watched, left_out, to, replace or bool(order.resumes), line):
                return 1
        return 0 if watched.outcome.completed else 1


def _submit(connection: Link, order: Order) -> str:
    from nectar.engines.remote.order import described

    connection.wait(0)
    if order.resumes:
        order = _resumed(connection, order)
    print(f"submitting to {connection.address}: {described(order)}", flush=True)
    run = connection.client().submit(
        app_folder(), ["--run-config", to_flwr(order.run_config | submitter())]
    )
    print(f"run {run}", flush=True)
    return run


def _resumed(connection: Link, order: Order) -> Order:
    """Learn from the server which settings the record was run with: every node is told them again."""
    import io
    import zipfile

    from nectar.engines.preflight import check_kind
    from nectar.engines.remote.fetching import request_record
    from nectar.engines.remote.order import resumed
    from nectar.records.outputs import recorded_config
    from server_app.sending import FetchRequest, checked_record

    folder, _, record = order.resumes.rstrip("/").rpartition("/")
    request = FetchRequest(checked_record(record), only=("provenance.json",))
    sent = request_record(connection, request, folder or order.output_dir)
    with zipfile.ZipFile(io.BytesIO(sent.content)) as archive:
        recorded = recorded_config(json.loads(archive.read("provenance.json")))
    order = resumed(order, str(sent.directory), recorded)
    check_kind(order.config)
    return order


def _watch(connection: Link, run: str, again: str, *, verbose: bool) -> Watched:
    from nectar.engines.remote.watching import watch

    watched = watch(connection, run, verbose=verbose)
    if watched.outcome is None:
        _leave(connection, run, again)
    return watched


def _fetch(
    connection: Link,
    watched: Watched,
    without: tuple[str, ...],
    output: Path | None,
    replace: bool,
    again: str,
) -> bool:
    """Bring the record home; a failure is told, since the run itself may have gone well."""
    from nectar.commands.fetch import bring
    from server_app.sending import FetchRequest

    if not watched.record:
        if watched.outcome and watched.outcome.completed:
            print(f"The log named no record: `{again}` brings the newest one.", flush=True)
        return False
    request = FetchRequest(watched.record, without)
    try:
        bring(connection, request, output, watched.output_dir, replace=replace)
    except NectarError as error:
        print(f"The record stays on the server ({watched.output_dir}/{watched.record}): {error}")
        print(f"`{again}` tries again.", flush=True)
        return False
    return True


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
    connection.client().stop(run)
    print(f"run {run} was stopped.")
    return 0
