"""A temporary folder of one process, removed when it ends, or by the next process if it was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def private_folder(prefix: str, base: Path | None = None) -> Iterator[Path]:
    """Make a folder that only its owner can read; it is locked while its process lives, and removed with it.

    Parameters
    ----------
    prefix : str
        With what its name begins, and those of the folders that are looked through for what killed processes left.
    base : Path, optional
        Where to make it; by default where temporary files go.
    """
    base = base or Path(tempfile.gettempdir())
    for left in base.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # its process lives, or it went meanwhile
            if left.stat().st_uid == os.getuid():
                with _locked(left):
                    shutil.rmtree(left, ignore_errors=True)
    new = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=base))
    with _locked(new):
        folder = new.rename(new.with_name(new.name[1:]))  # locked before another process finds it
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder; OSError if its process lives."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
