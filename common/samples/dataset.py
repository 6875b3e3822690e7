"""What a data set is: its description, its two splits, and the checksum a run's record states."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.generic]
Labels = NDArray[np.int64]

PAD = 0
"""The token that fills a text's end; as a target it marks a place that does not count."""

UNK = 1
"""The token that stands for every word outside the vocabulary."""


@dataclass(frozen=True)
class DatasetInfo:
    """A data set's public description; a server without data needs no more than this.

    The model's inputs are ``x = (raw / scale - mean) / std`` per channel. Mean and std are
    published constants, never computed from a site's own images: a statistic of private data would
    be a release.

    Attributes
    ----------
    name
        the name settings use.
    shape
        channels, height and width of one image; for text the number of tokens of a sequence.
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
    """

    name: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float
    task: Literal["classification", "next-token"] = "classification"

    @property
    def has_images(self) -> bool:
        """Whether a sample is an image, which has a normalisation and can be drawn, or text."""
        return len(self.shape) == 3

    @property
    def largest(self) -> float:
        """The largest absolute value that an image has as a model takes it."""
        ends = zip(self.mean, self.std, strict=True)
        return max(abs((end - mean) / std) for mean, std in ends for end in (0, 1))

    @property
    def target_shape(self) -> tuple[int, ...]:
        """The shape of one sample's target: () of a label, (T,) of a token at every place."""
        return self.shape if self.task == "next-token" else ()

    @property
    def unit(self) -> str:
        """What the samples are called in reports."""
        return "images" if self.has_images else "sequences"


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
        the natural client (a writer, a user) of each sample, int64 [n]; None where the data
        have none.
    """

    images: Images
    labels: Labels
    owners: Labels | None = None

    def __post_init__(self) -> None:
        """Refuse arrays that cannot belong together.

        Raises
        ------
        ValueError
            images and labels, or images and owners, differ in number.
        """
        if self.labels.shape[:1] != self.images.shape[:1]:
            raise ValueError(f"{self.images.shape[0]} images with labels {self.labels.shape}")
        if self.owners is not None and self.owners.shape != self.images.shape[:1]:
            raise ValueError(f"{self.images.shape[0]} images with owners {self.owners.shape}")

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Skipped:
    """A file that is in a data set's folder and not in the data set.

    Attributes
    ----------
    path
        its place below the folder.
    reason
        why it is not used.
    """

    path: str
    reason: str


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set in full: ``train`` is what sites are given, ``test`` is only reported.

    Attributes
    ----------
    info
        the public description.
    train
        the training split, before a validation share is cut from it.
    test
        the test split.
    checksum
        SHA-256 over both splits' contents; two runs with one checksum saw the same
        images.
    skipped
        files of an image folder that could not be used.
    store
        the folder of memory-mapped arrays that processes share; None where each process has
        its own copy.
    """

    info: DatasetInfo
    train: Split
    test: Split
    checksum: str
    skipped: tuple[Skipped, ...] = ()
    store: Path | None = None


def array_digest(array: NDArray[np.generic]) -> str:
    """Return the SHA-256 of an array's dtype, shape and values, however it is stored."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape} ".encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def combined_checksum(digests: list[str]) -> str:
    """Return one checksum for several arrays' digests, in their order."""
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()
