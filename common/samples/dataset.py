"""What a data set is: its description, its classes' names, its two splits, and the checksum a record states."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.generic]
Kind = Literal["images", "table", "series", "text"]
Labels = NDArray[np.int64]

PAD = 0
"""The token that fills a text's end; as a target it marks a place that does not count."""

UNK = 1
"""The token of every word outside the vocabulary."""

REACH = 100.0
"""The largest absolute value that a row or series has as a model takes it, if no bounds are stated."""


@dataclass(frozen=True)
class DatasetInfo:
    """A data set's public description; a server without data needs no more than this.

    The model's inputs are ``x = (raw / scale - mean) / std`` per channel. Mean and std are
    published constants, never computed from a site's own images: a statistic of private data would
    be a release. A row of a table is an image of one pixel whose channels are the columns, and a series one that is
    one pixel high: what is said per channel is then said of each column, or of each of a series' channels.

    Attributes
    ----------
    shape
        channels, height and width of one image; (columns, 1, 1) of a table's row; (channels, 1, steps) of a series; for
        text the number of tokens of a sequence.
    classes
        the classes' names; a label is an index into them. For text the vocabulary's ids.
    mean
        mean per channel of the published training images, in units of ``scale``.
    std
        standard deviation per channel, likewise.
    scale
        the largest raw value.
    task
        what is learned from it, a label an image or the next token at every place.
    arrays
        what numbers are, where samples are not text.
    low, high
        of rows and series: the public bounds of each channel's raw values, to which values beyond are brought; empty
        if none are stated.
    columns
        the names of a table's columns, or of a series' channels; empty if they have none.
    """

    name: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float
    task: Literal["classification", "next-token"] = "classification"
    arrays: Literal["images", "table", "series"] = "images"
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    columns: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """What a sample is."""
        return self.arrays if self.has_values else "text"

    @property
    def has_values(self) -> bool:
        """Whether a sample is of numbers, which have a normalisation and which gradients move, or text."""
        return len(self.shape) == 3

    @property
    def has_images(self) -> bool:
        """Whether a sample is an image, which can be drawn as one."""
        return self.kind == "images"

    @property
    def ends(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The smallest and the largest value of each channel, in units of ``scale``."""
        if self.has_images:
            return (0.0,) * len(self.mean), (1.0,) * len(self.mean)
        if self.low:
            return self.low, self.high
        pairs = list(zip(self.mean, self.std, strict=True))
        return tuple(m - REACH * s for m, s in pairs), tuple(m + REACH * s for m, s in pairs)

    @property
    def largest(self) -> float:
        """The largest absolute value that an image, a row or a series has as a model takes it."""
        low, high = self.ends
        channels = zip(self.mean, self.std, low, high, strict=True)
        return max(abs((end - m) / s) for m, s, *both in channels for end in both)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """The shape of one sample's target: () of a label, (T,) of a token at every place."""
        return self.shape if self.task == "next-token" else ()

    @property
    def unit(self) -> str:
        """What the samples are called in reports."""
        return {"images": "images", "table": "rows", "series": "series", "text": "sequences"}[
            self.kind
        ]


@dataclass(frozen=True, eq=False)
class Split:
    """Images and labels, read-only.

    Attributes
    ----------
    images
        raw values [n, C, H, W] in the data's own dtype; may be mapped from a file that
        processes share.
    labels
        int64 [n]; for text the next token at every place, [n, T].
    owners
        the natural client (a writer, a user) or the group (a patient) of each sample, int64 [n]; None
        where the data have none.
    """

    images: Images
    labels: Labels
    owners: Labels | None = None

    def __post_init__(self) -> None:
        """Refuse images that are not as many as labels or owners, with a ValueError."""
        if self.labels.shape[:1] != self.images.shape[:1]:
            raise ValueError(f"{self.images.shape[0]} images with labels {self.labels.shape}")
        if self.owners is not None and self.owners.shape != self.images.shape[:1]:
            raise ValueError(f"{self.images.shape[0]} images with owners {self.owners.shape}")

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, positions: Labels) -> Split:
        """Return the samples at ``positions``, int64 [m]."""
        owners = None if self.owners is None else self.owners[positions]
        return Split(self.images[positions], self.labels[positions], owners)


@dataclass(frozen=True)
class Skipped:
    """A file that is in a data set's folder and not in the data set."""

    path: str
    reason: str


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set in full: ``train`` is what sites are given, ``test`` is only reported.

    ``checksum`` is the SHA-256 over both splits' contents; ``store`` the folder of arrays that processes share, if any.
    """

    info: DatasetInfo
    train: Split
    test: Split
    checksum: str
    skipped: tuple[Skipped, ...] = ()
    store: Path | None = None

    @property
    def narrow(self) -> str:
        """Advice if images' values span less than an eighth of their range; else empty."""
        low, high, top = math.inf, -math.inf, self.info.scale
        for split in (self.train, self.test) if self.info.has_images else ():
            for at in range(0, len(split), 256):
                piece = split.images[at : at + 256]
                low, high = min(low, float(piece.min())), max(high, float(piece.max()))
                if high - low >= top / 8:
                    return ""
        if low >= high:
            return ""
        black, white = (round(65535 * end / top) for end in (low, high))
        levels = f"images.white={2 ** max(1, white - 128).bit_length() - 1}"
        if black > 2**12:  # half a step of 8 bits is 128 of 16 bits'
            levels = f"images.black={black - 128} images.white={min(white + 128, 65535)}"
        return (
            f"values are {low:g} to {high:g} of {top:g}, less than an eighth of the range: where a device fills few of "
            f"16 bits, set {levels}, or as its makers say"
        )


def array_digest(array: NDArray[np.generic]) -> str:
    """Return the SHA-256 of an array's dtype, shape and values, however it is stored."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape} ".encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def combined_checksum(digests: list[str]) -> str:
    """Return one checksum for several arrays' digests, in their order."""
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


# ---- class names ---------------------------------------------------------------------------------
# Names of classes that are one class in two spellings, for all that a person can see.

_SHOWN = 5


def alike(names: Sequence[str]) -> str:
    """Return a line that names classes equal except for case, blanks or number format; empty if there are none."""
    forms: dict[str, list[str]] = {}
    for name in names:
        forms.setdefault(_form(name), []).append(name)
    found = [f"{a!r} and {b!r}" for each in forms.values() for a, b in pairwise(each)]
    if not found:
        return ""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return (
        f"ONE CLASS OR TWO? {', '.join(found[:_SHOWN])}{more} differ in case, blanks or the form of a number alone and "
        "count as different classes: write each class in one way everywhere"
    )


def number_of(text: str) -> float | None:
    """Return the finite number that a text is; None of any other, and of Python's own way to write one, 1_000."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None


def _form(name: str) -> str:
    plain = "".join(name.split()).casefold()
    number = number_of(plain)
    return plain if number is None else repr(number)
