"""Samples one by one, as torch's and the hub's data sets give them, to two arrays."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from common.data.folders.decode import FILTER, on_white
from common.data.own.arrays import numbers
from common.errors import DataError

_GREY = ("1", "L", "LA", "La")
_COLOUR = ("P", "PA", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr", "HSV", "LAB")


def is_item_set(value: object) -> bool:
    """Whether ``value`` gives samples by position, as a data set of torch's does."""
    return hasattr(value, "__getitem__") and hasattr(value, "__len__") and not _is_plain(value)


def _is_plain(value: object) -> bool:
    return isinstance(value, (np.ndarray, str, bytes, dict, list, tuple)) or hasattr(value, "numpy")


def each(items: Any) -> Iterator[Any]:
    """Yield a data set's samples by position: not every one that has a length can be iterated over."""
    return (items[i] for i in range(len(items)))


def arrays_of(
    samples: Iterable[Any], count: int, size: int, what: str
) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """Return images [n, C, H, W] and labels [n] of ``count`` samples, each (image, label).

    An image is Pillow's, then all become grey or all RGB, or an array or tensor, which stays as it is.

    Parameters
    ----------
    size : int
        Pixels a side that Pillow's images are brought to, as those of a folder are; 0 leaves them as they are.
    what : str
        What a message calls the set.

    Raises
    ------
    DataError
        If a sample is no image with a whole number, or images differ in size.
    """
    images: NDArray[np.generic] | None = None
    labels = np.zeros(count, dtype=np.int64)
    for place, sample in enumerate(samples):
        image, labels[place] = _sample(sample, place, what)
        plane = _plane(image, size, f"{what}, image {place}")
        if images is None:
            images = np.empty((count, *plane.shape), dtype=plane.dtype)
        if isinstance(image, Image.Image) and len(plane) != images.shape[1]:
            if len(plane) == 1:
                plane = plane.repeat(3, axis=0)
            else:  # the first coloured one
                images = images.repeat(3, axis=1)
        if plane.shape != images.shape[1:]:
            raise DataError(
                f"{what} has images of shape {plane.shape} and {images.shape[1:]}: set data.size, such as "
                "data.size=32, to bring all to one size"
            )
        images[place] = plane
    if images is None:
        raise DataError(f"{what} holds no image")
    return images, labels


def _sample(sample: Any, place: int, what: str) -> tuple[Any, int]:
    try:
        image, label = sample
    except (TypeError, ValueError):
        raise DataError(f"{what}: sample {place} is not a pair of an image and its label") from None
    try:
        return image, operator.index(label.item() if hasattr(label, "item") else label)
    except (TypeError, ValueError, RuntimeError):
        raise DataError(
            f"{what}: the label of sample {place} is a {type(label).__name__}, not a whole number"
        ) from None


def _plane(image: Any, size: int, what: str) -> NDArray[np.generic]:
    if not isinstance(image, Image.Image):
        if image is None:
            raise DataError(f"{what} is missing")
        return numbers(image, what)
    if image.mode not in (*_GREY, *_COLOUR):
        raise DataError(
            f"{what} is of Pillow's mode {image.mode}, whose range is not known: bring its values to uint8 or 0..1"
        )
    flat = on_white(image).convert("L" if image.mode in _GREY else "RGB")
    if size:
        flat = ImageOps.fit(flat, (size, size), FILTER)
    values = np.asarray(flat)
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)
