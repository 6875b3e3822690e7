"""`nectar fetch`: bring the record of a run from the server to this machine, through Flower's own log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import ConfigError
from nectar.engines.flower.app import app_folder
from nectar.records.outputs import output_folder
from nectar.words import next_step, refuse_repeats, take_options

if TYPE_CHECKING:
    from nectar.engines.flower.connection import Connection
    from server_app.sending.request import Request

SUMMARY = "bring a run's record from the server to this machine"

USAGE = """\
Usage: nectar fetch CONNECTION RECORD-ID|latest [output-dir=/abs/on/the/server] [options]

Metrics, configuration, provenance, partition, pictures, checkpoints: what the run's record has, through the
SuperLink's own port. It lands whole, with a checksum, or not at all. Devices' memory (state) stays there. What was
left out can be fetched later; files of your own beside the record's stay.

  --ca FILE        the authority's certificate, for a connection given as HOST:PORT
  --insecure       the SuperLink has no TLS, and that is meant
  --output DIR     the directory of records on this machine (default: as `nectar run` has its records)
  --without A,B    leave these of the record there, such as samples,checkpoint/best.safetensors
  --replace        let the files of a completed run's copy on this machine go

  nectar fetch lab latest
  nectar fetch 192.0.2.7:8000 20260102-030405-feddm-digits-seed0-a1b2c3 --ca keys/ca.crt --without checkpoint
"""


def main(words: list[str]) -> int:
    """Fetch what ``words`` say; return the exit code."""
    from nectar.engines.flower.connecting import connect
    from server_app.sending.request import LATEST, Request, checked_record, parts_of

    options, rest = take_options(
        words, flags=("--insecure", "--replace"), values=("--ca", "--output", "--without")
    )
    named = [word for word in rest if "=" not in word]
    server_output = _server_output([word for word in rest if "=" in word])
    if len(named) != 2:
        raise ConfigError(
            f"nectar fetch needs a connection and a record: its id, or {LATEST}; `nectar fetch --help` shows how."
        )
    output = output_folder(options["--output"]) if "--output" in options else None
    request = Request(checked_record(named[1]), parts_of(options.get("--without", "")))
    app_folder()  # refused, if it is, before anything is asked
    with connect(named[0], options.get("--ca"), insecure="--insecure" in options) as connection:
        connection.wait(0)
        bring(
            connection,
            request,
            output,
            server_output,
            replace="--replace" in options,
        )
    return 0


def bring(
    connection: Connection,
    request: Request,
    output: Path | None,
    server_output: str,
    *,
    replace: bool,
) -> None:
    """Fetch a record and say where it lies.

    Raises
    ------
    NectarError
        If it did not come.
    """
    from common.config.loading import load
    from nectar.engines.remote.fetching import fetch

    to = output or load({}).output_dir
    began = time.monotonic()
    fetched = fetch(
        connection, app_folder(), request, to, server_output=server_output, replace=replace
    )
    if fetched.left_out:
        print(f"links and odd names stay on the server: {', '.join(fetched.left_out)}")
    if fetched.written:
        print(f"the record is here: {fetched.directory} ({time.monotonic() - began:.0f} s)")
    else:
        print(f"the record is here already: {fetched.directory}")
    print(next_step(fetched.directory), flush=True)


def _server_output(words: list[str]) -> str:
    refuse_repeats(words)
    found = ""
    for word in words:
        key, _, value = word.partition("=")
        if key.replace("_", "-") != "output-dir":
            raise ConfigError(f"nectar fetch takes no {key}=: only output-dir, the server's.")
        if not value.startswith(("/", "~/")):
            raise ConfigError(f"output-dir={value} is the server's, so it must be absolute.")
        found = value
    return found
