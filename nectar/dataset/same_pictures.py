"""Pictures of a folder that are the same, or nearly, in training and in test."""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.config.resolved import Config
from common.data.division.groups import group_ids
from common.data.folders.decode import Unreadable, read_image
from common.data.folders.folder import list_split, printable, split_folders
from common.data.folders.holdout import Holdout, test_split
from common.data.folders.pictures import most_pixels
from common.samples.dataset import Split
from common.settings.images import ImagesSettings

_SIDE, _APART, _SECONDS, _NAMED = 32, 2, 60.0, 10
#: a picture with less between its darkest and its brightest value is like any other as flat
_FLAT = 16


@dataclass(frozen=True)
class SamePictures:
    """Pairs of a test and a training picture's places, and how many files nobody had the time to look at."""

    pairs: tuple[tuple[str, str], ...]
    unseen: int

    @property
    def lines(self) -> list[str]:
        """What a person is told; nothing where all were looked at and none is there twice."""
        told = [f"  {test} is {train}" for test, train in self.pairs[:_NAMED]]
        if self.pairs[_NAMED:]:
            told.append(f"  and {len(self.pairs) - _NAMED:,} more")
        if self.pairs:
            told.insert(
                0,
                f"{len(self.pairs):,} test pictures are in training too, the same or within {_APART} of 255 at "
                f"{_SIDE}x{_SIDE} grey: the test accuracy counts what was learned by heart; remove them, or keep "
                "pictures together by images.group",
            )
        if self.unseen:
            told.append(
                f"{self.unseen:,} pictures were not looked at for being in training and in test: the {_SECONDS:g} "
                "seconds for it were over"
            )
        return told


def same_pictures(config: Config, folder: Path, skipped: set[str]) -> SamePictures:
    """Return which test pictures of a run's folder its training split has, too.

    Parameters
    ----------
    folder : Path
        The folder that the run divides.
    skipped : set of str
        The places of files that were not used.
    """
    looked = _Looks(folder, config.images, time.monotonic() + _SECONDS)
    train, test = (looked.at(files) for files in _parts(config, folder, skipped))
    pairs = {
        **_nearly(test, train),
        **{p: train.digests[d] for d, p in test.digests.items() if d in train.digests},
    }
    return SamePictures(tuple(sorted(pairs.items())), looked.unseen)


def _parts(config: Config, folder: Path, skipped: set[str]) -> list[list[str]]:
    """Return the places of the training and of the test pictures, as a run divides them."""
    settings, listed = config.images, []
    for place in split_folders(folder, settings.names):
        files = list_split(folder, place, settings.names, settings.group).files if place else ()
        listed.append([file for file in files if printable(file.path) not in skipped])
    train, test = listed
    places = [[file.path for file in files] for files in listed]
    if test or not train:
        return places
    labels = np.array([file.label for file in train])
    groups = group_ids(file.group for file in train) if settings.group else None
    cut = Holdout(config.data.test_share, config.seed)
    kept, held = test_split(Split(np.empty(len(train)), labels, groups), cut)
    return [[places[0][at] for at in part] for part in (kept, held)]


@dataclass
class _Looked:
    """Pictures that were looked at: by their files' contents, and small and grey, uint8 [n, 1024]."""

    digests: dict[str, str]
    places: list[str]
    small: NDArray[np.uint8]


@dataclass
class _Looks:
    folder: Path
    images: ImagesSettings
    ends: float
    unseen: int = 0

    def at(self, files: list[str]) -> _Looked:
        digests, places, small = dict[str, str](), [], [np.empty(0, np.uint8)]
        form = self.images.model_copy(update={"size": _SIDE, "channels": 1, "bits": 8})
        for number, place in enumerate(files):
            if time.monotonic() > self.ends:
                self.unseen += len(files) - number
                break
            path = self.folder / place
            with path.open("rb") as file:
                digests.setdefault(hashlib.file_digest(file, "sha256").hexdigest(), place)
            with suppress(Unreadable):
                values = read_image(path, form, most_pixels()).ravel()
                if np.ptp(values) >= _FLAT:
                    places.append(place)
                    small.append(values.astype(np.uint8))
        return _Looked(digests, places, np.concatenate(small).reshape(-1, _SIDE**2))


def _nearly(test: _Looked, train: _Looked) -> dict[str, str]:
    """Return the training picture that a test picture nearly is, by place: of those of nearly its mean."""
    means = train.small.mean(1)
    order = np.argsort(means)
    firsts = np.searchsorted(means[order], test.small.mean(1) - _APART, "left")
    lasts = np.searchsorted(means[order], test.small.mean(1) + _APART, "right")
    pairs = {}
    for place, values, first, last in zip(test.places, test.small, firsts, lasts, strict=True):
        near = order[first:last]
        for some in (slice(None, None, _SIDE + 1), slice(None)):  # the diagonal first
            apart = np.abs(train.small[near, some].astype(np.int16) - values[some])
            near = near[(apart <= _APART).all(1)]
        if len(near):
            pairs[place] = train.places[near[0]]
    return pairs
