"""Bytes that processes of one machine share: written once into a file that has no name, handed on as a descriptor.

Such a file is gone with the last process that has it open, however that one ends: nothing is left to clean up.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterable

#: what Linux hands out at once at most is a little less than this
_PIECE = 1 << 30


def write(blobs: Iterable[bytes]) -> tuple[int, list[int]]:
    """Write ``blobs`` one behind the other.

    Returns
    -------
    descriptor : int
        Of the file, which is the caller's to close. On Linux nobody can change it any more.
    offsets : list of int
        Where each one begins.
    """
    descriptor = _unnamed()
    offsets: list[int] = []
    end = 0
    try:
        with open(descriptor, "wb", closefd=False) as file:
            for blob in blobs:
                offsets.append(end)
                file.write(blob)
                end += len(blob)
        _seal(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, offsets


def read(descriptor: int, offset: int, length: int) -> bytes:
    """Return ``length`` bytes of a file that :func:`write` wrote.

    Raises
    ------
    EOFError
        If it ends before.
    """
    pieces: list[bytes] = []
    while length:
        piece = os.pread(descriptor, min(length, _PIECE), offset)
        if not piece:
            raise EOFError(f"a shared file ends {length} bytes too early")
        pieces.append(piece)
        offset, length = offset + len(piece), length - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _unnamed() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("nectar-pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:  # other systems' files have a name for a moment
        return os.dup(file.fileno())


def _seal(descriptor: int) -> None:
    if hasattr(os, "memfd_create"):
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
