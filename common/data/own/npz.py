"""``data.file``: arrays in a NumPy file."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import DataError


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content; DataError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(
            f"data.file={path} cannot be read ({error.strerror}): every machine that runs the federation needs it at "
            "that path"
        ) from error


def read_npz(path: Path) -> dict[str, Any]:
    """Return a file's arrays by name, never unpickling; DataError if it is no .npz, is damaged or holds objects."""
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            raise DataError(
                f"{path} is one array: write np.savez(path, train_images=..., train_labels=...)"
            )
        with found:
            return {name: _array(found, name, path) for name in found.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} cannot be read as a .npz file of NumPy's ({reason})") from error


def _array(found: Any, name: str, path: Path) -> Any:
    try:
        return found[name]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise DataError(
            f"{path}: {name} holds Python objects, which are never unpickled: save an array of numbers, and classes "
            "as np.array([...], dtype=str)"
        ) from None
