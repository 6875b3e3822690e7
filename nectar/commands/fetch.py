"""`nectar fetch`: bring the record of a run from the server to this machine, through Flower's own log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from common.errors import ConfigError
from nectar.arguments import (
    CaFile,
    Connection,
    Insecure,
    RecordsHere,
    Replace,
    Without,
    argument,
    next_step,
    refuse_repeats,
)
from nectar.engines.flower.app import app_folder
from nectar.records.outputs import output_folder

if TYPE_CHECKING:
    from nectar.engines.flower.connection import Connection as Link
    from server_app.sending import FetchRequest

HELP = """\
Metrics, configuration, provenance, partition, pictures, checkpoints: what the run's record has, through the
SuperLink's own port. It lands whole, with a checksum, or not at all. Devices' memory (state) stays there. What was
left out can be fetched later; files of your own beside the record's stay.

\b
nectar fetch lab latest
nectar fetch 192.0.2.7:8000 20260102-030405-feddm-digits-seed0-a1b2c3 \\
  --ca keys/ca.crt --without checkpoint
"""


def main(
    connection: Connection,
    record: Annotated[str, argument("RECORD-ID|latest", "which record")],
    words: Annotated[
        list[str] | None,
        argument("[output-dir=/abs/on/the/server]", "where the server's records lie"),
    ] = None,
    ca: CaFile = None,
    insecure: Insecure = False,
    output: RecordsHere = None,
    without: Without = "",
    replace: Replace = False,
) -> int:
    """Fetch what the words say; return 0."""
    from nectar.engines.flower.connection import connect
    from server_app.sending import FetchRequest, checked_record, parts_of

    server_output = _server_output(words or [])
    to = None if output is None else output_folder(output)
    request = FetchRequest(checked_record(record), parts_of(without))
    app_folder()  # refused, if it is, before anything is asked
    with connect(connection, ca, insecure=insecure) as link:
        link.wait(0)
        bring(link, request, to, server_output, replace=replace)
    return 0


def bring(
    connection: Link,
    request: FetchRequest,
    output: Path | None,
    server_output: str,
    *,
    replace: bool,
) -> None:
    """Fetch a record and say where it lies; NectarError if it did not come."""
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
        key, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"nectar fetch takes a connection and one record, not {word!r} too.")
        if key.replace("_", "-") != "output-dir":
            raise ConfigError(f"nectar fetch takes no {key}=: only output-dir, the server's.")
        if not value.startswith(("/", "~/")):
            raise ConfigError(f"output-dir={value} is the server's, so it must be absolute.")
        found = value
    return found
