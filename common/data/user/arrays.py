"""What a user's own set brings, from an npz, a function or item by item, checked and brought to one form."""

from __future__ import annotations

import inspect
import logging
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from common.code.imports import load
from common.data.division.stratify import group_ids, on_both_sides
from common.data.folders.decode import FILTER, on_white
from common.data.store import UNREADABLE, Contents
from common.data.user.rows import check_printed, columns_of, rows_of
from common.errors import DataError, NectarError, RowsError, short_reason
from common.samples.dataset import Images, Labels, Split
from common.settings.images import class_name

log = logging.getLogger("flwr")

LABELS = ("train_labels", "test_labels")
GROUPS = ("train_groups", "test_groups")
"""What samples belong to, text or integers [n]: a patient, a device."""

_NAMED = ("train_images", "test_images", *LABELS, *GROUPS, "classes", "mean", "std")

ON_BOTH_SIDES = "groups on both sides"
"""Under which a store notes how many groups are in training and in test, and how many there are."""

#: of rows and series
_NAMED_BESIDE = ("low", "high", "columns")

_MOST_NAMED = 1000
"""The most classes that labels of text may have: with more they are no classes."""

#: Keras' names, as in its mnist.npz
_ALSO = {
    "x_train": "train_images",
    "y_train": "train_labels",
    "x_test": "test_images",
    "y_test": "test_labels",
}
_CHANNELS = (1, 3)
_FORM = "[n, H, W], [n, C, H, W] or [n, H, W, C] with 1 or 3 channels"


def contents_of(
    found: Mapping[str, Any],
    what: str,
    kind: Literal["images", "table", "series"] = "images",
    axes: str = "auto",
) -> Contents:
    """Return the splits that ``found`` holds, with its classes and constants noted with them.

    It holds ``train_images`` and ``train_labels``, or Keras' ``x_train`` and ``y_train``; ``test_images`` and
    ``test_labels`` likewise, or neither; possibly ``classes``, ``mean``, ``std``, ``train_groups`` and ``test_groups``,
    and of rows and series ``low``, ``high`` and ``columns``. Arrays are NumPy's or torch's: images uint8, uint16 or
    float in 0..1; rows and series any finite numbers; labels integers from 0, or the classes' names as text.
    ``kind`` and ``axes`` are ``data.kind`` and ``data.axes``; messages call the set ``what``.
    """
    brought = _by_name(found, what, () if kind == "images" else _NAMED_BESIDE)
    named = _coded(brought, what)
    train, scale = _split("train", named, what, kind, axes)
    shape, dtype = train.images.shape[1:], train.images.dtype
    test = Split(np.empty((0, *shape), dtype), np.empty(0, np.int64))
    if "test_images" in named:
        test, other = _split("test", named, what, kind, axes)
        if test.images.shape[1:] != shape or test.images.dtype != dtype or other != scale:
            raise DataError(
                f"{what}: the test images ({_shape_in_words(test.images)}) are not of the training images' form "
                f"({_shape_in_words(train.images)})"
            )
    if not len(train):
        raise DataError(f"{what} has no training image")
    groups = _groups(named, GROUPS[0], len(train), what)
    others = _groups(named, GROUPS[1], len(test), what)
    if groups:
        train = Split(train.images, train.labels, group_ids(groups))
    about: dict[str, Any] = {"scale": scale, "classes": _classes(named, train, test, what)}
    for key in ("mean", "std", "low", "high"):
        if key in named:
            values = numbers(named[key], f"{what}: {key}").ravel()
            about[key] = [float(value) for value in values]
    if named is not brought:
        about["named"] = True
    if groups and others:
        about[ON_BOTH_SIDES] = on_both_sides(groups, others)
    if "classes" in brought:
        about["stated"] = True
    if kind != "images":
        about["columns"] = columns_of(named, shape[0], what)
    return Contents(train, test, (), about)


def _groups(named: Mapping[str, Any], key: str, number: int, what: str) -> list[str]:
    """Return the names of the groups of a split's samples; none where the set brings none."""
    if key not in named:
        return []
    names = np.asarray(named[key])
    if names.shape != (number,) or names.dtype.kind not in "UOiu":
        raise DataError(
            f"{what}: {key} is {names.dtype} of shape {names.shape}: it must be text or integers [{number}], one "
            "a sample"
        )
    return [str(name).strip() for name in names]


def _shape_in_words(images: Images) -> str:
    return f"{' x '.join(map(str, images.shape[1:]))}, {images.dtype}"


def _by_name(found: Mapping[str, Any], what: str, also: Sequence[str]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for key in found:
        name = _ALSO.get(key, key)
        if name in named:
            raise DataError(f"{what} has {name} twice, once by Keras' name: leave one out")
        if name in (*_NAMED, *also):
            named[name] = found[key]
    named = {key: value for key, value in named.items() if value is not None}
    needed = ["train_images", "train_labels"]
    if "test_images" in named or "test_labels" in named:
        needed += ["test_images", "test_labels"]
    missing = [key for key in needed if key not in named]
    if missing:
        held = ", ".join(map(str, found)) or "nothing"
        raise DataError(
            f"{what} lacks {missing[0]}: it must hold train_images and train_labels (or x_train and y_train), and "
            f"test_images and test_labels or neither; it holds {held}"
        )
    unused = [str(key) for key in found if _ALSO.get(key, key) not in named]
    if unused:
        log.warning("%s: not used: %s", what, ", ".join(unused))
    return named


def _coded(named: dict[str, Any], what: str) -> dict[str, Any]:
    """Return labels that are the classes' names as integers, by the order of ``classes``, else the alphabet's.

    Names that are all integers are ordered as such.
    """
    keys = [key for key in LABELS if key in named]
    texts = {key: text for key in keys if (text := _texts(named[key])) is not None}
    if not texts:
        return named
    if mixed := [key for key in keys if key not in texts]:
        raise DataError(f"{what}: {mixed[0]} are numbers where the other labels are names")
    there = sorted({name for text in texts.values() for name in text})
    if len(there) > _MOST_NAMED:
        raise DataError(
            f"{what}: its labels have {len(there):,} different values, more than the {_MOST_NAMED:,} of classes that "
            "are distinguished by name: is this the column of the classes (data.label)?"
        )
    check_printed(there, f"{what}: labels")
    if all(re.fullmatch(r"-?[0-9]{1,15}", name) for name in there):
        there.sort(key=int)
    names = there
    if "classes" in named:
        names = [class_name(name) for name in np.asarray(named["classes"], dtype=str).ravel()]
        missing = next((name for name in there if name not in names), None)
        if missing is not None:
            raise RowsError(
                f"{what}: a label is {missing!r}, which its classes do not name",
                reported="it has a label that images.classes does not name",
            )
    place = {name: index for index, name in enumerate(names)}
    codes = {
        key: np.array([place[name] for name in text], dtype=np.int64) for key, text in texts.items()
    }
    return {**named, **codes, "classes": names}


def _texts(labels: Any) -> list[str] | None:
    """Return labels that are text, or numbers with a fraction, as names, one a sample; None of any others."""
    array = np.asarray(labels) if not isinstance(labels, torch.Tensor) else np.zeros(())
    if array.ndim != 1:
        return None
    if array.dtype.kind == "f" and np.isfinite(array).all() and (array % 1).any():
        return [repr(float(value)) for value in array]
    if array.dtype.kind == "U" or (
        array.dtype.kind == "O" and all(isinstance(name, str) for name in array)
    ):
        return [class_name(name) for name in array]
    return None


def _split(
    part: str,
    named: Mapping[str, Any],
    what: str,
    kind: Literal["images", "table", "series"],
    axes: str,
) -> tuple[Split, float]:
    message = f"{what}: {part}_images"
    array, scale = numbers(named[f"{part}_images"], message), 1.0
    images: Images
    if kind == "images":
        images, scale = _pixels(array, message)
    else:
        images = rows_of(array, kind, message, axes)
    labels = _labels(named[f"{part}_labels"], f"{what}: {part}_labels")
    if len(images) != len(labels):
        raise DataError(f"{what}: {len(images)} {part}_images with {len(labels)} {part}_labels")
    return Split(images, labels), scale


def numbers(value: Any, what: str) -> NDArray[np.generic]:
    """Return an array of numbers of what becomes one; DataError if it does not, as lists of unequal lengths."""
    try:
        array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
        array = np.asarray(array)
    except (ValueError, TypeError) as error:
        raise DataError(f"{what} is not an array of numbers ({str(error)[:100]})") from None
    if array.dtype.kind not in "buif":
        raise DataError(
            f"{what} must be an array of numbers, not of {array.dtype}: write categories and dates as numbers before"
        )
    return array


def _pixels(array: NDArray[np.generic], what: str) -> tuple[Images, float]:
    """Return images as [n, C, H, W] with their largest value."""
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim != 4:
        hint = "; rows of a table need data.kind=table" if array.ndim == 2 else ""
        raise DataError(f"{what} has shape {array.shape}: it must be {_FORM}{hint}")
    else:
        first, last = array.shape[1] in _CHANNELS, array.shape[3] in _CHANNELS
        if first == last:
            raise DataError(
                f"{what} has shape {array.shape}, of which "
                f"{'either end' if first else 'neither end'} could be the channels: it must be {_FORM}"
            )
        array = array if first else array.transpose(0, 3, 1, 2)
    if 0 in array.shape[1:]:
        raise DataError(f"{what} has shape {array.shape}: its images are empty")
    values, scale = _valued(array, what)
    return np.ascontiguousarray(values), scale


def _valued(array: NDArray[np.generic], what: str) -> tuple[NDArray[np.generic], float]:
    """Return pixels in one of the types that are stored; the scale follows from the type alone, never from values."""
    if array.dtype == np.uint8:
        return array, 255.0
    if array.dtype == np.bool_:
        return array.astype(np.uint8), 1.0
    if array.dtype == np.uint16:
        return array.astype(np.uint16), 65535.0  # in this machine's order of bytes
    low, high = (array.min(), array.max()) if array.size else (0, 0)
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise DataError(f"{what} holds NaN or infinity")
        if low < 0 or high > 1:
            raise DataError(
                f"{what} holds {low:g} to {high:g}: floats must be in 0..1, before any normalisation, which is "
                "images.mean's and images.std's; or give uint8"
            )
        return array.astype(np.float32), 1.0
    if low < 0 or high > 255:
        raise DataError(
            f"{what} holds {low} to {high} as {array.dtype}: integers must be in 0..255, or be uint16"
        )
    return array.astype(np.uint8), 255.0


def _labels(value: Any, what: str) -> Labels:
    array = numbers(value, what)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.dtype.kind == "f" and np.isfinite(array).all() and not (array % 1).any():
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind == "f":
        raise DataError(
            f"{what} is {array.dtype} of shape {array.shape}: it must be integers [n], from 0, one an image"
        )
    if len(array) and array.min() < 0:
        raise DataError(f"{what} holds {array.min()}: labels count from 0")
    return array.astype(np.int64)


def _classes(named: Mapping[str, Any], train: Split, test: Split, what: str) -> list[str]:
    """Return the set's own names, else the labels from 0 to the largest."""
    largest = max(int(split.labels.max(initial=0)) for split in (train, test))
    if "classes" not in named:
        if largest > 65535:
            raise DataError(f"{what}: the largest label is {largest}: labels count classes from 0")
        names = [str(label) for label in range(largest + 1)]
    else:
        names = [class_name(name) for name in np.asarray(named["classes"], dtype=str).ravel()]
    check_classes(names, largest, f"{what}: classes")
    return names


def check_classes(names: list[str], largest: int, what: str) -> None:
    """Refuse names of classes that cannot be those of labels up to ``largest`` (DataError)."""
    if len(names) < 2:
        raise DataError(f"{what}: {len(names)} of them; a classifier needs two or more")
    if largest >= len(names):
        raise DataError(f"{what}: {len(names)} names, and labels up to {largest}, counted from 0")
    if "" in names or len(set(names)) < len(names):
        raise DataError(f"{what}: an empty name, or one that is there twice")


# ---- npz -----------------------------------------------------------------------------------------
# ``data.file``: arrays in a NumPy file.


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
    except UNREADABLE as error:
        raise DataError(
            f"{path} cannot be read as a .npz file of NumPy's ({short_reason(error)})"
        ) from error


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


# ---- function ------------------------------------------------------------------------------------
# ``dataset=package.module:callable``: what a function of the user's returns.


def read_function(path: str, data_dir: Path, size: int) -> Mapping[str, Any]:
    """Call the function ``package.module:callable`` and return images and labels by name.

    One that needs an argument is given the data directory. It returns a mapping as `contents_of` takes it, or data sets
    as torch has them: (train, test), or one.
    """
    function = load(path)
    if not callable(function):
        raise DataError(f"dataset={path} is a {type(function).__name__}: name a function")
    arguments = [data_dir] if _takes_directory(function, path) else []
    try:
        found = function(*arguments)
    except NectarError:
        raise
    except Exception as error:  # a user's own function may raise anything
        raise DataError(
            f"dataset={path} raised {type(error).__name__}: {short_reason(error)}"
        ) from error
    if isinstance(found, Mapping):
        return found
    splits = found if isinstance(found, tuple) else (found,)
    if len(splits) not in (1, 2) or not all(map(is_item_set, splits)):
        raise DataError(
            f"dataset={path} returned a {type(found).__name__}: return a dict with train_images, train_labels and, if "
            "there are, test_images and test_labels; or two data sets of torch's, (train, test)"
        )
    return of_item_sets(dict(zip(("train", "test"), splits, strict=False)), size, path)


def of_item_sets(splits: Mapping[str, Any], size: int, what: str) -> dict[str, Any]:
    """Return data sets of torch's, by the name of the split, as images and labels by name; their classes too."""
    named: dict[str, Any] = {}
    for part, items in splits.items():
        named[f"{part}_images"], named[f"{part}_labels"] = arrays_of(
            samples_in_order(items, f"{what} ({part})"), len(items), size, f"{what} ({part})"
        )
    classes = getattr(splits["train"], "classes", None)
    if classes is not None:
        named["classes"] = [str(name) for name in classes]
    return named


def _takes_directory(function: Callable[..., Any], path: str) -> bool:
    """Return whether the function needs an argument."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # one written in C may have no signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p for p in parameters if p.default is p.empty and p.kind not in variadic]
    if len(needed) > 1 or any(p.kind not in positional for p in needed):
        names = ", ".join(p.name for p in needed)
        raise DataError(
            f"dataset={path} needs the arguments {names}: it is called without any, or with the data directory"
        )
    return bool(needed)


# ---- items ---------------------------------------------------------------------------------------
# Samples one by one, as torch's and the hub's data sets give them, to two arrays.

_GREY = ("1", "L", "LA", "La")
_COLOUR = ("P", "PA", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr", "HSV", "LAB")


def is_item_set(value: object) -> bool:
    """Return whether ``value`` gives samples by position, as a data set of torch's does."""
    plain = isinstance(value, np.ndarray | str | bytes | dict | list | tuple)
    by_position = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    return by_position and not plain and not hasattr(value, "numpy")


def samples_in_order(items: Any, what: str) -> Iterator[Any]:
    """Yield a data set's samples by position: not every one that has a length can be iterated over.

    DataError, of the set that ``what`` names, if one cannot be read.
    """
    for i in range(len(items)):
        try:
            yield items[i]
        except Exception as error:  # a data set's own code may raise anything
            raise DataError(
                f"{what}: sample {i} cannot be read ({type(error).__name__}: {short_reason(error)}): mend or remove it"
            ) from error


def arrays_of(
    samples: Iterable[Any], count: int, size: int, what: str
) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """Return images [n, C, H, W] and labels [n] of ``count`` samples, each (image, label).

    An image is Pillow's, then all become grey or all RGB, or an array or tensor, which is not converted.
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
            f"{what}: the label of sample {place} is a {type(label).__name__}, not an integer"
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
