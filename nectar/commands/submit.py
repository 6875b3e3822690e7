"""`nectar submit`: run a federation at a SuperLink that is there, watch it, and bring its record home."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import ConfigError, NectarError
from nectar.engines.flower.app import app_folder
from nectar.records.outputs import output_folder
from nectar.words import take_options, to_flwr, typed, with_file_as_word

if TYPE_CHECKING:
    from nectar.engines.flower.connection import Connection
    from nectar.engines.remote.order import Order
    from nectar.engines.remote.watching import Watched

SUMMARY = "run a federation at a SuperLink and bring its record home"

USAGE = """\
Usage: nectar submit CONNECTION [EXPERIMENT] [key=value ...] [options]

Checks the configuration, hands the app to the SuperLink, shows the run's log and, at its end, fetches its record
to this machine. The exit code is 0 only if the run completed and its record came. Ctrl-C ends the watching, not the
run.

A CONNECTION is a name in Flower's config.toml ([superlink.NAME] with address and root-certificates), or HOST:PORT
with --ca FILE. output-dir is a path on the server, data-dir one on every machine that reads a shared data set; both
are absolute, and left out each machine has its own.
resume=RECORD-ID continues a run whose record lies on the server, with round=N or round=best behind that checkpoint.

  --config FILE    a YAML file of settings, by section, or what `nectar config` printed; paths in it are not the
                   server's, and stay here
  --ca FILE        the authority's certificate, for a connection given as HOST:PORT
  --insecure       the SuperLink has no TLS, and that is meant
  --output DIR     where the record comes to on this machine (as `nectar run` has its records)
  --no-fetch       leave the record on the server; `nectar fetch` brings it later
  --without A,B    leave these of the record there, such as samples,checkpoint/best.safetensors
  --replace        let the files of a completed run's copy on this machine go (those of a resumed one go unasked)
  --follow RUN     watch a run that was submitted earlier
  --stop RUN       end a run
  --verbose        show every line of Flower's log

  nectar submit lab method=fedavg rounds=3
  nectar submit 192.0.2.7:8000 --ca keys/ca.crt digits-alpha001 output-dir=/srv/runs
"""

_FLAGS = ("--insecure", "--no-fetch", "--replace", "--verbose")
_VALUES = ("--ca", "--output", "--without", "--follow", "--stop")


def main(words: list[str]) -> int:
    """Submit what ``words`` say; return 0 if it completed, 1 if not, 128 + n if signal n ended the watching."""
    from nectar.engines.flower.connecting import connect
    from nectar.engines.preflight import check_kind
    from nectar.engines.remote.order import order_of
    from server_app.sending.request import LATEST, parts_of

    options, rest = take_options(with_file_as_word(words), flags=_FLAGS, values=_VALUES)
    if not rest or "=" in rest[0]:
        raise ConfigError(
            "nectar submit needs a connection first: a name, or HOST:PORT --ca ca.crt."
        )
    name, *settings = rest
    for option in ("--follow", "--stop"):
        if option in options and (settings or not options[option].isdecimal()):
            raise ConfigError(
                f"{option} takes the number of a run that was submitted, and no settings."
            )
    output = output_folder(options["--output"]) if "--output" in options else None
    # Options name files of this machine, and what is typed goes to every site.
    order, without = (
        order_of(settings, typed("submit", rest)),
        parts_of(options.get("--without", "")),
    )
    if not order.resumes:
        check_kind(order.config)
    app_folder()  # refused, if it is, before anything is asked
    with connect(name, options.get("--ca"), insecure="--insecure" in options) as connection:
        if "--stop" in options:
            return _stop(connection, options["--stop"])
        run = options.get("--follow") or _submit(connection, order)
        watched = _watch(connection, run, options, name)
        if watched.outcome is None:
            return 128 + watched.signal
        if "--no-fetch" not in options:
            words = ["fetch", name, watched.record or LATEST]
            if directory := watched.output_dir or order.output_dir:
                words.append(f"output-dir={directory}")
            again = _line(words, options, "--output", "--without")
            replace = "--replace" in options or bool(order.resumes)
            if not _fetch(connection, watched, without, output, replace, again):
                return 1
        return 0 if watched.outcome.completed else 1


def _submit(connection: Connection, order: Order) -> str:
    from nectar.engines.remote.order import described

    connection.wait(0)
    if order.resumes:
        order = _resumed(connection, order)
    print(f"submitting to {connection.address}: {described(order)}", flush=True)
    run = connection.client().submit(app_folder(), ["--run-config", to_flwr(order.run_config)])
    print(f"run {run}", flush=True)
    return run


def _resumed(connection: Connection, order: Order) -> Order:
    """Learn from the server which settings the record was run with: every node is told them anew."""
    import io
    import zipfile

    from nectar.engines.preflight import check_kind
    from nectar.engines.remote.fetching import ask
    from nectar.engines.remote.order import resumed
    from nectar.records.resume import recorded_config
    from server_app.sending.request import Request, checked_record

    folder, _, record = order.resumes.rstrip("/").rpartition("/")
    request = Request(checked_record(record), only=("provenance.json",))
    head, content = ask(connection, app_folder(), request, folder or order.output_dir)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        recorded = recorded_config(json.loads(archive.read("provenance.json")))
    order = resumed(order, head.directory, recorded)
    check_kind(order.config)
    return order


def _watch(connection: Connection, run: str, options: dict[str, str], name: str) -> Watched:
    from nectar.engines.remote.watching import watch

    watched = watch(connection, run, verbose="--verbose" in options)
    if watched.outcome is None:
        _leave(connection, run, _line(["submit", name], options))
    return watched


def _fetch(
    connection: Connection,
    watched: Watched,
    without: tuple[str, ...],
    output: Path | None,
    replace: bool,
    again: str,
) -> bool:
    """Bring the record home; a failure is told, since the run itself may have gone well."""
    from nectar.commands.fetch import bring
    from server_app.sending.request import Request

    if not watched.record:
        if watched.outcome and watched.outcome.completed:
            print(f"The log named no record: `{again}` brings the newest one.", flush=True)
        return False
    request = Request(watched.record, without)
    try:
        bring(connection, request, output, watched.output_dir, replace=replace)
    except NectarError as error:
        print(f"The record stays on the server ({watched.output_dir}/{watched.record}): {error}")
        print(f"`{again}` tries again.", flush=True)
        return False
    return True


def _leave(connection: Connection, run: str, again: str) -> None:
    """Say how a run that goes on is watched again or ended; at a terminal, ask."""
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


def _stop(connection: Connection, run: str) -> int:
    connection.client().stop(run)
    print(f"run {run} was stopped.")
    return 0


def _line(words: list[str], options: dict[str, str], *kept: str) -> str:
    """Return the line of another command at the same connection, with those of the options that are ``kept``."""
    line = ["nectar", *words]
    for option in ("--ca", *kept):
        line += [option, options[option]] if option in options else []
    return shlex.join([*line, *(["--insecure"] if "--insecure" in options else [])])
