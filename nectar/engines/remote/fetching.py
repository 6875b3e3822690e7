"""The operator's side: ask for a record, read it from the log, put it where records lie."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import stat
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from common.errors import NectarError
from nectar.arguments import submitter, to_flwr
from nectar.engines.flower.app import app_folder
from nectar.engines.flower.client import Client, LaunchError
from nectar.engines.flower.connection import Connection
from nectar.engines.flower.marked_lines import marked_content
from nectar.engines.remote.order import follow
from server_app.run_directory import COMPLETED, LOCK, RunDirectory
from server_app.sending import (
    HEAD,
    LATEST,
    LIMIT,
    LINE_BYTES,
    MARK,
    NAME,
    FetchRequest,
    Pack,
    within,
)

#: how often the log is read until all lines are there; the SuperLink keeps it
_READINGS = 3

#: what a run that only packs and prints may take
_SECONDS = 600.0


class FetchError(NectarError):
    """A record that did not come home."""


def request_record(connection: Connection, request: FetchRequest, server_output: str = "") -> Pack:
    """Let the server send a record, and return what came.

    Parameters
    ----------
    server_output : str
        The server's output directory, where it is not the server's default.

    Raises
    ------
    FetchError
        If the server refuses, not all came, or it sent another record: under the name of one here it would take that
        one's place.
    """
    config = {"fetch": text_of(request), "output-dir": server_output, **submitter()}
    client = connection.client()
    run = client.submit(app_folder(), ["--run-config", to_flwr(config)])
    with _ended_in_time(client, run):
        for _ in range(_READINGS):
            arrival = _read(connection, run)
            try:
                sent = arrival.whole()
                break
            except FetchError as error:
                problem = error
        else:
            raise FetchError(f"{problem}, read {_READINGS} times: try again")
    if request.record not in (sent.record, LATEST):
        raise FetchError(
            f"the server sent the record {sent.record[:80]!r} where {request.record} was asked for: nothing is taken; "
            "look at the server's log of the run that sent it"
        )
    return sent


def text_of(request: FetchRequest) -> str:
    """Write a request as the run config's value."""
    words = [request.record]
    words += [f"without={','.join(request.without)}"] if request.without else []
    words += [f"only={','.join(request.only)}"] if request.only else []
    return " ".join(words)


def _read(connection: Connection, run: str) -> Arrival:
    """Return what the log of a run holds; FetchError with the server's reason if it refused."""
    arrival, reasons = Arrival(), list[str]()

    def see(line: str) -> None:
        if not arrival.take(line) and (reason := marked_content(line, "stopped").get("reason")):
            reasons.append(str(reason))

    outcome = follow(connection, run, see)
    if not outcome.completed:
        raise FetchError(next(iter(reasons), "") or outcome.reason)
    return arrival


@contextmanager
def _ended_in_time(client: Client, run: str) -> Iterator[None]:
    """End a run that takes far too long; Flower would start it again and again on a server without room."""

    def end() -> None:
        with suppress(LaunchError):
            client.stop(run)

    timer = threading.Timer(_SECONDS, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


# ---- unpacking -----------------------------------------------------------------------------------
# The archive of a record as files at home: every name is checked, nothing is written outside, nothing half.

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

#: bytes an archive may unpack to, and bytes compared at a time
_LIMIT, _PIECE = 4_000_000_000, 1_000_000


def unpack(
    content: bytes, target: Path, *, replace: bool = False, without: Collection[str] = ()
) -> bool:
    """Unpack an archive as the directory ``target``.

    What is there and is none of the archive's files stays: a report, a file that was fetched before. Where the
    record has gone on since, a copy of a run that had not completed, nothing is asked.

    Parameters
    ----------
    content : bytes
        The zip archive.
    target : Path
        The record's directory at home. It is whole or not there.
    replace : bool
        Whether files of a completed run that are otherwise there may go.
    without : collection of str
        What of the record was left out; where it has gone on since, an earlier copy of that goes.

    Returns
    -------
    bool
        Whether anything was written: False if the same files are there already.

    Raises
    ------
    FetchError
        If the archive holds anything but plain files below the record, or cannot be read, or the directory is there
        with other content.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = _members(archive)
            there = [member for member in members if os.path.lexists(target / member.filename)]
            changed = os.path.lexists(target) and not (
                target.is_dir() and all(_is_same(archive, member, target) for member in there)
            )
            if len(there) == len(members) and not changed:
                return False
            if changed and _is_own(target) and RunDirectory(target).is_written():
                raise FetchError(
                    f"{target} is being written by a run on this machine, and what came is otherwise: give another "
                    "--output, or wait for its end"
                )
            if changed and not replace and (_is_own(target) or not _is_unfinished(target)):
                raise FetchError(
                    f"{target} is there already, and otherwise: give another --output, or --replace to let it go"
                )
            _place(archive, members, target, without if changed else ())
    except zipfile.BadZipFile as error:
        raise FetchError(f"what came is not an archive ({error})") from None
    except (NotImplementedError, RuntimeError, ValueError, zlib.error, EOFError) as error:
        raise FetchError(f"what came is an archive that cannot be read ({error})") from None
    except OSError as error:
        raise FetchError(
            f"{target} cannot be written ({error.strerror}): choose another --output"
        ) from None
    return True


def _members(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    members = archive.infolist()
    for member in members:
        kind = stat.S_IFMT(member.external_attr >> 16)
        named = all(NAME.fullmatch(part) for part in member.filename.split("/"))
        if kind != stat.S_IFREG or not named or member.compress_type not in _METHODS:
            raise FetchError(
                f"what came holds {member.filename[:100]!r}, which is not a file of a record: nothing is unpacked"
            )
    if len({member.filename for member in members}) != len(members):
        raise FetchError("what came holds a file twice: nothing is unpacked")
    if sum(member.file_size for member in members) > _LIMIT:
        raise FetchError(
            f"what came is larger than {_LIMIT / 1e9:g} GB unpacked: nothing is unpacked"
        )
    return members


def _is_same(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> bool:
    path = target / member.filename
    if not path.is_file() or path.stat().st_size != member.file_size:
        return False
    with archive.open(member) as came, path.open("rb") as here:
        return all(piece == here.read(len(piece)) for piece in iter(lambda: came.read(_PIECE), b""))


def _is_unfinished(target: Path) -> bool:
    """Return whether the copy at home is of a run that went on, or failed, when it was fetched."""
    stated = RunDirectory(target).stated()
    return stated is not None and stated.get("outcome") != COMPLETED


def _is_own(target: Path) -> bool:
    """Return whether this machine wrote it: a copy that came has no lock, and another machine's is not touched."""
    return os.path.lexists(target / LOCK)


def _place(
    archive: zipfile.ZipFile,
    members: list[zipfile.ZipInfo],
    target: Path,
    stale: Collection[str],
) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temporary:
        fresh = Path(temporary, "record")
        fresh.mkdir()
        for member in members:
            path = fresh / member.filename
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, path.open("xb") as file:
                shutil.copyfileobj(source, file)
        if os.path.lexists(target):
            _carry_over(target, fresh, stale)
            target.rename(Path(temporary, "replaced"))
        fresh.rename(target)


def _carry_over(old: Path, fresh: Path, stale: Collection[str]) -> None:
    """Copy what the archive does not have from the old directory to the fresh one."""
    for folder, folders, files in os.walk(old):
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for path in (Path(folder, name) for name in [*files, *links]):
            name = path.relative_to(old)
            if not os.path.lexists(fresh / name) and not within(name.as_posix(), stale):
                (fresh / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, fresh / name, follow_symlinks=False)


# ---- arrival -------------------------------------------------------------------------------------
# A record from the lines of a log that `server_app.sending` wrote.


class Arrival:
    """What has come of a record so far: what the head says, and the parts by number."""

    def __init__(self) -> None:
        self._head: dict[str, Any] | None = None
        self._parts: dict[int, bytes] = {}

    def take(self, line: str) -> bool:
        """Take a line of the log; tell whether it was one of these. A damaged one counts as missing."""
        mark, _, rest = line.strip().partition(" ")
        number, _, content = rest.partition(" ")
        if mark != MARK:
            return False
        with suppress(ValueError, TypeError, KeyError, OverflowError, RecursionError):
            if number == HEAD:
                self._head = _parsed(content)
            else:
                self._parts[int(number)] = base64.b85decode(content)
        return True

    def whole(self) -> Pack:
        """Return what was sent; FetchError if a line is missing, or it is not as packed."""
        head = self._head
        if head is None:
            raise FetchError("the log holds no record")
        count = -(-head["bytes"] // LINE_BYTES)
        missing = sum(number not in self._parts for number in range(count))
        if missing:
            raise FetchError(f"{missing} of {count} lines of the record are missing")
        content = b"".join(self._parts[number] for number in range(count))
        if hashlib.sha256(content).hexdigest() != head["sha256"]:
            raise FetchError(
                "the record that came is not the one that was sent (its SHA-256 differs)"
            )
        return Pack(head["record"], Path(head["directory"]), content, head["left_out"])


def _parsed(text: str) -> dict[str, Any]:
    """Read a head: its number of lines follows from the bytes, which have a limit.

    Raises
    ------
    ValueError, TypeError, KeyError, OverflowError, RecursionError
        If it is something else.
    """
    found = json.loads(text)
    if not 0 <= int(found["bytes"]) <= LIMIT:
        raise ValueError("no size of an archive")
    texts = {key: str(found[key]) for key in ("record", "directory", "sha256")}
    return {**texts, "bytes": int(found["bytes"]), "left_out": tuple(map(str, found["left_out"]))}
