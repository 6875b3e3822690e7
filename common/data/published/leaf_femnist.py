"""FEMNIST: handwritten characters by writer, from LEAF's JSON shards."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.data.published.leaf import Paths, owners_of
from common.data.published.leaf_json import REMEDY, User, read_users
from common.errors import DataError
from common.samples.dataset import Images, Labels, Split

_SIDE, _PIXELS, _CLASSES = 28, 784, 62
_BYTE = 255
_NEAR = 1e-6  # of a byte's step: what is left of it in a float's decimals


def read_femnist(train: Paths, test: Paths, extra: Paths = ()) -> tuple[Split, Split]:
    """Return FEMNIST's splits; the training images' owners are their writers.

    LEAF writes a pixel as a float in [0, 1], 1 being white paper. Images are [n, 1, 28, 28] in
    units of 1/255: uint8 where every pixel of the split is a byte, else float32. A label is a
    place in digits, capitals, small letters.

    Parameters
    ----------
    train
        the training shards, in their order.
    test
        the test shards.
    extra
        none.

    Raises
    ------
    DataError
        a shard is damaged, or a pixel or a label is not one of FEMNIST's; file and
        writer are named.
    """
    return _read_split(train), Split(*_arrays(test)[:2])


def _read_split(paths: Paths) -> Split:
    images, labels, names, sizes = _arrays(paths)
    return Split(images, labels, owners_of(names, sizes))


def _arrays(paths: Paths) -> tuple[Images, Labels, list[str], list[int]]:
    """Return a part's images and labels, and which runs of them are whose."""
    images: list[Images] = [np.empty((0, 1, _SIDE, _SIDE), dtype=np.uint8)]
    labels, names = [np.empty(0, dtype=np.int64)], []
    for user in chain.from_iterable(map(_users, paths)):
        images.append(_images(user))
        labels.append(_labels(user))
        names.append(user.name)
    sizes = [len(part) for part in labels[1:]]
    # One image that is no bytes makes all of them floats, in the same units.
    return np.concatenate(images), np.concatenate(labels), names, sizes


def _users(path: Path) -> list[User]:
    return [user for user in read_users(path) if user.x]


def _images(user: User) -> Images:
    pixels = _numbers(user.x)
    if pixels is None or pixels.shape != (len(user.x), _PIXELS):
        raise DataError(f"{user.place}: an image is not {_PIXELS} numbers; {REMEDY}")
    inside = (pixels >= 0) & (pixels <= 1)  # NaN is neither
    if not inside.all():
        at = tuple(np.argwhere(~inside)[0].tolist())
        raise DataError(
            f"{user.place}: pixel {at[1]} of image {at[0]} is {pixels[at]:g}, which is not in [0, 1]; {REMEDY}"
        )
    scaled = pixels * _BYTE
    nearest = np.rint(scaled)
    bytes_only = np.abs(scaled - nearest).max() <= _NEAR
    chosen = nearest.astype(np.uint8) if bytes_only else scaled.astype(np.float32)
    return chosen.reshape(-1, 1, _SIDE, _SIDE)


def _labels(user: User) -> Labels:
    labels = _numbers(user.y)
    if labels is None or labels.dtype.kind != "i" or labels.shape != (len(user.y),):
        raise DataError(f"{user.place}: a label is not a whole number; {REMEDY}")
    wrong = (labels < 0) | (labels >= _CLASSES)
    if wrong.any():
        raise DataError(
            f"{user.place}: the label {labels[wrong][0]} is not in 0 to {_CLASSES - 1}; {REMEDY}"
        )
    return labels.astype(np.int64)


def _numbers(values: object) -> NDArray[np.number[Any]] | None:
    """Return a list of numbers, or of lists of as many of them, as an array; None for any other."""
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):  # rows of different lengths
        return None
    return array if array.dtype.kind in "if" else None
