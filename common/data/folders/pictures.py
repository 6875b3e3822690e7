"""How large a picture may be that is decoded: Pillow's own bound, and no more than this machine's memory is for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from PIL import Image

from common.errors import DataError

#: bytes a pixel takes at most on its way: as read, turned, with its alpha, on white, in colour
_BYTES_A_PIXEL = 24
#: of the memory there is, what one picture may take
_SHARE = 0.25

_CGROUP = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@cache
def most_pixels() -> int:
    """Return the pixels of the largest picture that is decoded here; the same whatever else the machine does."""
    pillows = 1024**3 // 4 // 3  # as Pillow has it, whatever somebody set there
    memory = memory_bytes()
    return pillows if memory is None else min(pillows, int(memory * _SHARE) // _BYTES_A_PIXEL)


def memory_bytes() -> int | None:
    """Return the memory of this machine, or of the container that the process is in; None if nothing tells."""
    found = []
    with suppress(AttributeError, OSError, ValueError):  # not of this system
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for path in _CGROUP:
        with suppress(OSError, ValueError):  # not there, or "max"
            found.append(int(path.read_text()))
    return min((size for size in found if size > 0), default=None)


@contextmanager
def bounded(what: str) -> Iterator[None]:
    """While this lasts, whoever opens a picture that is too large gets Pillow's error, which becomes a sentence."""
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = (
        most_pixels() // 2
    )  # Pillow warns above it, and raises above twice that
    try:
        yield
    except Image.DecompressionBombError:
        raise DataError(
            f"{what} holds a picture of more than {most_pixels():,} pixels, which this machine's memory is not for: "
            "make it smaller, or leave it out"
        ) from None
    finally:
        Image.MAX_IMAGE_PIXELS = before
