"""Pictures of a folder that are the same, or nearly, in training and in test."""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.data.division.groups import group_ids
from common.data.folders.decode import Unreadable, read_image
from common.data.folders.folder import ImageFile, list_split, printable, split_folders
from common.data.folders.holdout import Holdout, test_split
from common.data.folders.image_sets import site_split
from common.data.folders.pictures import most_pixels
from common.division import Division
from common.samples.dataset import Dataset, Split
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


def same_pictures(division: Division) -> SamePictures:
    """Return which test pictures of a run's folder are among those that its sites learn from, too."""
    looked = _Looks(division.config.images, time.monotonic() + _SECONDS)
    train, test = (looked.at(files) for files in _parts(division))
    pairs = _nearly(test, train, looked)
    pairs |= {p: train.digests[d] for d, p in test.digests.items() if d in train.digests}
    whole = sorted((str(one), str(other)) for one, other in pairs.items())
    return SamePictures(tuple(whole), looked.unseen)


def _parts(division: Division) -> list[list[Path]]:
    """Return the training and the test pictures, as a run divides them."""
    config, dataset = division.config, division.dataset
    folder = config.data_dir / Path(config.images.folder).expanduser()
    train, test = (
        _used(folder, place, dataset, config.images) if place else []
        for place in split_folders(folder, config.images.names)
    )
    if config.images.sites:
        sites = zip(config.images.site_folders, division.site_datasets.values(), strict=True)
        theirs = [
            _used(path, site_split(path, config.images), held, config.images)
            for path, held in sites
        ]
        train = [file for part in theirs for file in part]
    if test or not train or config.images.sites:
        return [[path for path, _ in part] for part in (train, test)]
    labels = np.array([file.label for _, file in train])
    groups = group_ids(file.group for _, file in train) if config.images.group else None
    cut = Holdout(config.data.test_share, config.seed)
    parts = test_split(Split(np.empty(len(train)), labels, groups), cut)
    return [[train[at][0] for at in part] for part in parts]


def _used(
    folder: Path, split: str, dataset: Dataset, images: ImagesSettings
) -> list[tuple[Path, ImageFile]]:
    skipped = {one.path for one in dataset.skipped}
    files = list_split(folder, split, images.names, images.group).files
    return [(folder / file.path, file) for file in files if printable(file.path) not in skipped]


@dataclass
class _Looked:
    """Pictures that were looked at: by their files' contents, and small and grey, uint8 [n, 1024]."""

    digests: dict[str, Path]
    places: list[Path]
    small: NDArray[np.uint8]


@dataclass
class _Looks:
    images: ImagesSettings
    ends: float
    unseen: int = 0

    def at(self, files: list[Path]) -> _Looked:
        digests, places, small = dict[str, Path](), list[Path](), [np.empty(0, np.uint8)]
        form = self.images.model_copy(update={"size": _SIDE, "channels": 1, "bits": 8})
        for number, path in enumerate(files):
            if time.monotonic() > self.ends:
                self.unseen += len(files) - number
                break
            with suppress(Unreadable, OSError):  # one may be gone by now
                with path.open("rb") as file:
                    digests.setdefault(hashlib.file_digest(file, "sha256").hexdigest(), path)
                values = read_image(path, form, most_pixels()).ravel()
                if np.ptp(values) >= _FLAT:
                    places.append(path)
                    small.append(values.astype(np.uint8))
        return _Looked(digests, places, np.concatenate(small).reshape(-1, _SIDE**2))


def _nearly(test: _Looked, train: _Looked, looked: _Looks) -> dict[Path, Path]:
    """Return the training picture that a test picture nearly is, by place: of those of nearly its mean.

    Those that there is no time for count as not looked at.
    """
    means = train.small.mean(1)
    order = np.argsort(means)
    firsts = np.searchsorted(means[order], test.small.mean(1) - _APART, "left")
    lasts = np.searchsorted(means[order], test.small.mean(1) + _APART, "right")
    pairs = {}
    for place, values, first, last in zip(test.places, test.small, firsts, lasts, strict=True):
        if time.monotonic() > looked.ends:
            looked.unseen += 1
            continue
        near = order[first:last]
        for some in (slice(None, None, _SIDE + 1), slice(None)):  # the diagonal first
            apart = np.abs(train.small[near, some].astype(np.int16) - values[some])
            near = near[(apart <= _APART).all(1)]
        if len(near):
            pairs[place] = train.places[near[0]]
    return pairs
