"""The server's side: a record's files as one archive, the same bytes for the same files."""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

from common.errors import FederationError
from server_app.run_directory import RunDirectory
from server_app.sending.request import LATEST, Request

LIMIT = 100_000_000
"""Bytes an archive may have: all of it passes through the SuperLink's log, and stays there."""

#: what the record of a simulation keeps for its devices; sites' memory leaves no machine
_PRIVATE = "state"

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,127}")
"""Names of a record's files and folders; half-written ones begin with a dot."""

_FIRST_DATE = (1980, 1, 1, 0, 0, 0)

#: bytes read at a time: a record may be larger than the memory
_PIECE = 1_000_000

#: a folder of no more files is spoken of by its files
_FEW = 4


@dataclass(frozen=True)
class Pack:
    """A packed record.

    Attributes
    ----------
    content : bytes
        The zip archive.
    left_out : tuple of str
        Files that are there and were not packed, though nobody asked to leave them out.
    """

    record: str
    directory: Path
    content: bytes
    left_out: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """The archive's SHA-256 in hexadecimal."""
        return hashlib.sha256(self.content).hexdigest()


def pack(output_dir: Path, request: Request, limit: int = LIMIT) -> Pack:
    """Pack a record that lies below the output directory.

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


def _files(directory: Path, request: Request) -> tuple[list[Path], list[str]]:
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
