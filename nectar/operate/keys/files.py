"""Key files: private from their first byte, whole or not there, and never written over another."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from common.errors import NectarError

#: modes of a directory of keys, of a private key and of what may be handed out
DIRECTORY, PRIVATE, PUBLIC = 0o700, 0o600, 0o644


class KeysError(NectarError):
    """A key or certificate that cannot be made, read or registered."""


def make_directory(directory: Path) -> None:
    """Make ``directory`` for its user alone, unless it is there already; KeysError if it cannot be made."""
    try:
        # Whoever may write to a directory above may put another one in its place.
        for above in reversed(directory.parents):
            above.mkdir(mode=0o755, exist_ok=True)
        directory.mkdir(mode=DIRECTORY, exist_ok=True)
    except OSError as error:
        raise KeysError(
            f"the directory {directory} cannot be made ({error.strerror}): name one of your own"
        ) from None


def refuse_existing(*paths: Path) -> None:
    """Refuse, before any work, what would have to be written over; KeysError naming the first file that is there."""
    for path in paths:
        if os.path.lexists(path):
            raise _exists(path)


def write_new(contents: Mapping[Path, tuple[bytes, int]]) -> None:
    """Write files, each with its content and mode: all of them, or none, also where Ctrl-C comes in between.

    Parameters
    ----------
    contents : mapping
        From the path to (content, mode). The mode holds from the start (less what the umask takes away), so that
        a private key is readable to others not for a moment.

    Raises
    ------
    KeysError
        If one is there already or cannot be written; what was written is taken back.
    """
    refuse_existing(*contents)
    staged = {path: path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp") for path in contents}
    try:
        for path, temporary in staged.items():
            _write(temporary, *contents[path])
        for path, temporary in staged.items():
            os.link(temporary, path)  # a link, unlike a rename, replaces nothing
    except BaseException as error:
        for written, temporary in staged.items():
            if _is_same(written, temporary):
                written.unlink()
        if isinstance(error, FileExistsError):
            raise _exists(path) from None
        if isinstance(error, OSError):
            raise KeysError(f"{path} cannot be written ({error.strerror})") from None
        raise
    finally:
        for temporary in staged.values():
            temporary.unlink(missing_ok=True)


def _write(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _is_same(path: Path, temporary: Path) -> bool:
    """Whether both names are of one file, which is then ours and nobody else's."""
    try:
        return path.samefile(temporary)
    except OSError:
        return False


def read(path: Path) -> bytes:
    """Return a file's content; KeysError if it is not there or cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise KeysError(f"there is no {path}") from None
    except OSError as error:
        raise KeysError(f"{path} cannot be read ({error.strerror})") from None


def _exists(path: Path) -> KeysError:
    return KeysError(
        f"{path} is there already, and no key is ever written over: move it away to make a new one"
    )
