"""A record sent home by the server: one archive, the same bytes for the same files, as lines of a log."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import shutil
import sys
import time
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import Any, Literal

from common.config.keys import FETCH
from common.config.loading import load
from common.errors import ConfigError, FederationError
from server_app.run_directory import RunDirectory

LIMIT = 100_000_000
"""Bytes an archive may have: all of it passes through the SuperLink's log, and stays there."""

#: what the record of a simulation keeps for its devices; sites' memory leaves no machine
_PRIVATE = "state"

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,127}")
"""Names of a record's files and folders; half-written ones begin with a dot."""

_FIRST_DATE = (1980, 1, 1, 0, 0, 0)

#: bytes read at a time: a record may be larger than the memory
_PIECE = 1_000_000

#: bytes of a round's line at most, where only the newest is read
_LONGEST_LINE = 2**23

#: a folder of no more files is spoken of by its files
_FEW = 4


@dataclass(frozen=True)
class Pack:
    """A packed record.

    Attributes
    ----------
    record : str
        Its id.
    directory : Path
        Where it is on the server.
    content : bytes
        The zip archive.
    left_out : tuple of str
        Files that are there and were not packed, though nobody asked to leave them out.
    """

    record: str
    directory: Path
    content: bytes
    left_out: tuple[str, ...]


def pack_record(output_dir: Path, request: FetchRequest, limit: int = LIMIT) -> Pack:
    """Pack a record that is below the output directory.

    Links are never followed, nor sent; what devices keep in ``state`` stays.

    Raises
    ------
    FederationError
        If there is no such record, or it is larger than ``limit``, with what would make it smaller; if a file of it
        goes while it is read.
    """
    directory = find(output_dir, request.record)
    try:
        files, left_out = _files(directory, request)
        content = _zipped(directory, files, limit)
    except OSError as error:
        gone = isinstance(error, FileNotFoundError)
        what = "changed while it was read: try again" if gone else "cannot be read on the server"
        raise FederationError(
            f"the record {directory} {what} ({error.strerror}: {error.filename})"
        ) from None
    return Pack(directory.name, directory, content, tuple(left_out))


def _zipped(directory: Path, files: list[Path], limit: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path in files:
            info = zipfile.ZipInfo(path.relative_to(directory).as_posix(), _FIRST_DATE)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
            info.create_system = 3  # as on Unix, wherever this runs
            info.file_size = path.stat().st_size
            with path.open("rb") as source, archive.open(info, "w") as target:
                while piece := source.read(_PIECE):
                    target.write(piece)
                    if buffer.tell() > limit:
                        raise _too_large(directory, files, limit)
    if buffer.tell() > limit:
        raise _too_large(directory, files, limit)
    return buffer.getvalue()


def find(output_dir: Path, name: str) -> Path:
    """Return the directory of a record; FederationError if there is none of that id, or none at all."""
    if name == LATEST:
        records = sorted(path for path in output_dir.glob("*") if _is_record(path))
        if not records:
            raise FederationError(
                f"there is no record below {output_dir} on the server: name its output-dir as output-dir=/abs/path"
            )
        return records[-1]
    if not _is_record(output_dir / name):
        raise FederationError(
            f"there is no record {name} below {output_dir} on the server: give the id that the run's log states, or "
            "the server's output-dir as output-dir=/abs/path"
        )
    record = RunDirectory(output_dir / name)
    if record.stated() is None:
        raise FederationError(f"the record {name} on the server {record.why_not()}")
    return record.directory


def _is_record(path: Path) -> bool:
    return NAME.fullmatch(path.name) is not None and path.is_dir() and RunDirectory(path).is_there()


def _files(directory: Path, request: FetchRequest) -> tuple[list[Path], list[str]]:
    """Return what is asked for, in a fixed order, and the names of what cannot be sent."""
    files: list[Path] = []
    left_out: list[str] = []
    for top in sorted(directory.iterdir()):
        if top.name == _PRIVATE:
            continue
        inside = [] if top.is_symlink() or not top.is_dir() else sorted(top.rglob("*"))
        for path in [top, *inside]:
            parts = path.relative_to(directory).parts
            if any(part.startswith(".") for part in parts) or not request.wants("/".join(parts)):
                continue
            linked = any(p.is_symlink() for p in (path, *path.parents) if p.is_relative_to(top))
            if linked or not all(NAME.fullmatch(part) for part in parts):
                left_out.append("/".join(parts))
            elif path.is_file():
                files.append(path)
    return files, left_out


def _too_large(directory: Path, files: list[Path], limit: int) -> FederationError:
    tops: dict[str, list[Path]] = {}
    for path in files:
        tops.setdefault(path.relative_to(directory).parts[0], []).append(path)
    sizes: dict[str, int] = {}
    for top, inside in tops.items():
        for path in inside:
            name = path.relative_to(directory).as_posix() if len(inside) <= _FEW else top
            sizes[name] = sizes.get(name, 0) + path.stat().st_size
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:3]
    parts = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in largest)
    return FederationError(
        f"the record {directory} is larger packed than the {limit / 1e6:.0f} MB that come home through a log: leave "
        f"something out with --without ({parts}, unpacked), or copy that directory from the server"
    )


# ---- lines ---------------------------------------------------------------------------------------
# An archive as lines of a log, and back: numbered, in base 85, with a SHA-256 over all.

#: bytes of the archive in a line: the SuperLink stores each line apart
LINE_BYTES = 48_000

#: what such a line begins with, and the number of the first one
MARK, HEAD = "nectar-fetch", "head"


def wire_lines(pack: Pack) -> Iterator[str]:
    """Yield the lines that carry ``pack``, without line ends: a head, then the numbered parts."""
    count = -(-len(pack.content) // LINE_BYTES)
    head = {
        "record": pack.record,
        "directory": str(pack.directory),
        "bytes": len(pack.content),
        "lines": count,
        "sha256": hashlib.sha256(pack.content).hexdigest(),
        "left_out": pack.left_out,
    }
    yield f"{MARK} {HEAD} {json.dumps(head)}"
    for number in range(count):
        part = pack.content[number * LINE_BYTES : (number + 1) * LINE_BYTES]
        yield f"{MARK} {number} {base64.b85encode(part).decode('ascii')}"


# ---- request -------------------------------------------------------------------------------------
# What is asked of the ServerApp that sends a record home: one text, the value of the run config's key ``fetch``.

LATEST = "latest"
"""The record that was begun last."""

_RECORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_PART = re.compile(rf"{_NAME}(?:/{_NAME}){{0,3}}")


@dataclass(frozen=True)
class FetchRequest:
    """A record, and which of its files.

    Attributes
    ----------
    record : str
        Its id, or ``latest``.
    without : tuple of str
        Files and folders of the record that are left out, such as ``samples``, ``checkpoint/best.safetensors``.
    only : tuple of str
        If any, the only ones that are sent.
    """

    record: str
    without: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    def wants(self, file: str) -> bool:
        """Return whether a file of the record, named as in the record, is asked for."""
        return not within(file, self.without) and (not self.only or within(file, self.only))

    @classmethod
    def parse(cls, text: str) -> FetchRequest:
        """Read the run config's value; ConfigError if it is not one."""
        record, *words = text.split() or [""]
        parts: dict[str, tuple[str, ...]] = {}
        for word in words:
            name, equals, value = word.partition("=")
            if name not in ("without", "only") or not equals:
                raise ConfigError(f"fetch takes without=... and only=..., not {word[:60]!r}")
            parts[name] = parts_of(value)
        return cls(checked_record(record), **parts)


def within(file: str, parts: Collection[str]) -> bool:
    """Return whether a file of a record is one of ``parts`` or is in one of them."""
    return any(file == part or file.startswith(f"{part}/") for part in parts)


def checked_record(name: str) -> str:
    """Return a record's id; ConfigError if it is a path or otherwise none."""
    if not _RECORD.fullmatch(name):
        raise ConfigError(
            f"{name[:80]!r} is not a record's id: give the name of its directory alone, or {LATEST}"
        )
    return name


def parts_of(text: str) -> tuple[str, ...]:
    """Read names of a record's files with commas between, of nothing none; ConfigError if one cannot be there."""
    names = text.split(",") if text else []
    for name in names:
        if not _PART.fullmatch(name):
            raise ConfigError(
                f"{name[:60]!r} is nothing of a record: such are checkpoint, checkpoint/best.safetensors, samples, "
                "synthetic, metrics.jsonl"
            )
    return tuple(dict.fromkeys(names))


# ---- send ----------------------------------------------------------------------------------------
# The ServerApp of a run that trains nothing: it packs a record and prints it into its own log.

logger = getLogger("flwr")

#: Flower takes up what was printed every 0.2 s, and has three seconds at the end for what is left then: so lines are
#: printed no faster than a loaded machine stores them
_LINES_A_BURST, _PAUSE, _LAST_PAUSE = 20, 0.3, 1.5


def send(run_config: Mapping[str, Any]) -> None:
    """Print the record that ``run_config`` asks for; NectarError if there is none, or it is too large."""
    request = FetchRequest.parse(str(run_config[FETCH]))
    output_dir = load({"output-dir": run_config.get("output-dir", "")}).output_dir
    packed = pack_record(output_dir, request)
    logger.info("sending %s: %.2f MB packed", packed.directory, len(packed.content) / 1e6)
    for number, line in enumerate(wire_lines(packed)):
        sys.stdout.write(f"{line}\n")
        if number % _LINES_A_BURST == _LINES_A_BURST - 1:
            time.sleep(_PAUSE)
    time.sleep(_LAST_PAUSE + len(packed.content) / LINE_BYTES / 1000)
    logger.info("sent")


# ---- marked lines --------------------------------------------------------------------------------
# What a ServerApp tells programs that read its log: a line of its own, marked, with JSON behind the mark.
#
# Nothing that a site says can pass for one: it is quoted within lines that begin otherwise, with its line ends taken
# out.

Kind = Literal["record", "stopped", "sites", "round", "completed"]
"""Where the run's record lies, as ``directory``; why the run stopped, as ``reason``; who takes part, as ``nodes``, from
the site's name to its node's number; which round was ``reached`` of how many, ``of``, and
the seconds that are ``left``, where a round was measured, and the newest line's ``figures``; that all is done and
written, with the record's ``directory``."""


def monitored(record: RunDirectory) -> dict[str, Any]:
    """Return ``figures``, what a monitor reads of a run: its newest line, room on the disk; nothing of a site's."""
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        with (record.directory / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LONGEST_LINE))
            line = json.loads(file.read().splitlines()[-1])
        spent = ((line.get("notes") or {}).get("spent") or {}).values()
        told = [one["epsilon"] for one in spent if one["epsilon"] is not None]
        seconds = [v for v in line["seconds"].values() if isinstance(v, int | float)]
        figures = {
            "round": line["round"],
            "accuracy": (line.get("test") or {}).get("accuracy"),
            "replies": {
                outcome: len(line.get(outcome) or ())
                for outcome in ("accepted", "rejected", "shortened")
            },
            "bytes": {way: sum(line["bytes"][way].values()) for way in ("up", "down")},
            "seconds": round(sum(seconds), 3),
            "epsilon": max(told, default=None),
            "free": shutil.disk_usage(record.directory).free,
        }
        return {"figures": figures}
    return {}


def print_marked(kind: Kind, **content: Any) -> None:
    """Print a marked line."""
    # In one piece: other threads print lines too.
    sys.stdout.write(f"nectar-{kind} {json.dumps(content)}\n")
    sys.stdout.flush()
