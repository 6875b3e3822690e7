"""MNIST's idx format: a big-endian header (type, rank, sizes), then unsigned bytes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.data.folders.files import SourceFile, read_verified
from common.errors import DataError
from common.samples.dataset import Split

_UNSIGNED_BYTE = 0x08


def read_idx_splits(data_dir: Path, files: tuple[SourceFile, ...]) -> tuple[Split, Split]:
    """Read train images, train labels, test images and test labels, in this order.

    Raises
    ------
    DataError
        a file is missing, not the published one, or does not keep to the format.
    """
    arrays = [parse_idx(read_verified(data_dir, file), data_dir / file.path) for file in files]
    train, test = (
        Split(images[:, None], labels.astype(np.int64))
        for images, labels in (arrays[:2], arrays[2:])
    )
    return train, test


def parse_idx(content: bytes, path: Path) -> NDArray[np.uint8]:
    """Return the array in an idx file's ``content``.

    Raises
    ------
    DataError
        the header is not one of unsigned bytes, or announces another number of bytes
        than there are.
    """
    if len(content) < 4 or content[:3] != bytes([0, 0, _UNSIGNED_BYTE]):
        raise DataError(
            f"{path} is not an idx file of unsigned bytes: it starts with {content[:4]!r}"
        )
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise DataError(
            f"{path} is truncated: it ends within its header, after {len(content)} bytes"
        )
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], ">u4"))
    expected = start + math.prod(shape)
    if len(content) != expected:
        raise DataError(
            f"{path} is truncated or damaged: it has {len(content):,} bytes, its header announces "
            f"{expected:,}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
