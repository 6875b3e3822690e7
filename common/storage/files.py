"""Files that are complete or absent: written to a temporary name, flushed to disk, then renamed; text safe as CSV."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

#: of the longest integer that is read
_DIGITS = 300

_TEMPORARY = re.compile(r"\..+\.(?P<process>\d+)\.tmp")


def write_atomically(path: Path, write: Callable[[Path], object], *, flushed: bool = True) -> None:
    """Let ``write`` fill a temporary file next to ``path``, then rename it into place.

    What is not ``flushed`` to disk outlives the process, but may be torn by a power cut: for what has a checksum.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        if flushed:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8, what that lacks as escapes, which JSON reads back."""
    write_atomically(
        path, lambda to: to.write_text(text, encoding="utf-8", errors="backslashreplace")
    )


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def cache_folder() -> Path | None:
    """Return the user's folder for what can be made again; None for a user without a home, as in a container."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        return None
    return cache.absolute() / "nectar"


def open_regular(path: Path, flags: int) -> int:
    """Open a regular file; OSError for a link, for a pipe, which would never open, or if it cannot be opened."""
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_regular(path: Path) -> str:
    """Return the text of a file that ``open_regular`` opens."""
    with open(open_regular(path, os.O_RDONLY), encoding="utf-8") as file:
        return file.read()


def read_file(path: Path) -> bytes:
    """Return the bytes of a regular file, or of one that a link leads to; OSError of a pipe, which may never end."""
    with open(open_regular(path.resolve(), os.O_RDONLY), "rb") as file:
        return file.read()


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal; OSError if it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse_json(text: bytes) -> Any:
    """Parse JSON; ValueError or RecursionError if it is not JSON, or has a number that no float can hold."""
    return json.loads(text, parse_int=_bounded)


def _bounded(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def collect_leftovers(directory: Path) -> None:
    """Delete what processes that are gone have left half-written below ``directory``."""
    for path in directory.rglob(".*.tmp"):
        found = _TEMPORARY.fullmatch(path.name)
        if found is None or path.is_symlink() or _is_anothers(int(found["process"])):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _is_anothers(process: int) -> bool:
    """Return whether another process of this number is alive; this process's own number counts as a dead one's."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


# ---- csv text ------------------------------------------------------------------------------------
# Comma-separated text in which a spreadsheet finds no formula.

_BEGINS_A_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a line of names and a line a row, with a comma between cells."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([plain(cell) for cell in row] for row in (head, *rows))
    return text.getvalue()


def plain(cell: Any) -> Any:
    """Return a cell that no spreadsheet computes: a text that starts like a formula gets an apostrophe."""
    if isinstance(cell, str) and cell.startswith(_BEGINS_A_FORMULA) and not _is_number(cell):
        return f"'{cell}"
    return cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
