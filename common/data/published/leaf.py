"""Data sets of LEAF (Caldas et al. 2018), whose samples have natural owners: where their files lie."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from common.data.folders.files import SourceFile
from common.errors import DataError
from common.samples.dataset import Labels, Split

FOLDER = "leaf"
_PUBLISHER = "https://github.com/TalwalkarLab/leaf"
_READER = 1  # another number makes every store be built again
_PARTS: tuple[Literal["train", "test"], ...] = ("train", "test")

Paths = Sequence[Path]


@dataclass(frozen=True)
class LeafSource:
    """Shards that LEAF's own scripts draw from the public data, so no checksum is published.

    Attributes
    ----------
    folder
        the data set's folder below ``leaf``, with ``train/*.json`` and ``test/*.json``.
    read
        makes the two splits of the training shards, the test shards and ``extra``, each
        sorted by name.
    extra
        further files below the data directory.
    """

    folder: str
    read: Callable[[Paths, Paths, Paths], tuple[Split, Split]]
    extra: tuple[str, ...] = ()

    def paths(self, data_dir: Path) -> list[Path]:
        """Return where its files lie, as far as they are there."""
        shards = [path for part in _PARTS for path in self._shards(data_dir, part)]
        return [*shards, *(data_dir / path for path in self.extra)]

    def missing(self, data_dir: Path) -> list[SourceFile]:
        """Return what does not lie below ``data_dir``; a part's shards count as one file."""
        absent = [
            SourceFile(f"{FOLDER}/{self.folder}/{part}/*.json", part, "", _PUBLISHER)
            for part in _PARTS
            if not self._shards(data_dir, part)
        ]
        return absent + [
            SourceFile(path, "train", "", _PUBLISHER)
            for path in self.extra
            if not (data_dir / path).is_file() and not _as_pickle(data_dir / path).is_file()
        ]

    def splits(self, data_dir: Path) -> tuple[Split, Split]:
        """Return the training split, with owners, and the test split; DataError naming a missing or damaged file."""
        self._require(data_dir)
        train, test = (self._shards(data_dir, part) for part in _PARTS)
        return self.read(train, test, [data_dir / path for path in self.extra])

    def fingerprint(self, data_dir: Path) -> str:
        """Return what tells a store of these files from one of others or changed ones; DataError if one is missing."""
        self._require(data_dir)
        lines = [f"leaf {_READER}"]
        for path in filter(Path.is_file, self.paths(data_dir)):
            about = path.stat()
            lines.append(f"{path.relative_to(data_dir)}\0{about.st_size}\0{about.st_mtime_ns}")
        return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()

    def _shards(self, data_dir: Path, part: str) -> list[Path]:
        return sorted((data_dir / FOLDER / self.folder / part).glob("*.json"))

    def _require(self, data_dir: Path) -> None:
        if missing := self.missing(data_dir):
            raise DataError(
                f"{data_dir / missing[0].path} is missing and is never downloaded: make LEAF's {self.folder} with its "
                f"own scripts ({_PUBLISHER}) so that the files lie there, or point data-dir or NECTAR_DATA to a folder "
                "that has them"
            )


def owners_of(users: Sequence[str], sizes: Sequence[int]) -> Labels:
    """Return the numbers of the owners of samples.

    Parameters
    ----------
    users
        whose each run of samples is; a user may come more than once.
    sizes
        how many samples each run has.

    Returns
    -------
    int64 [sum of sizes]: users that have samples are 0, 1, ... in the order of their ids as
    text; a user without one gets no number.
    """
    held = [user for user, size in zip(users, sizes, strict=True) if size]
    _, numbers = np.unique(held, return_inverse=True)
    return np.repeat(numbers.astype(np.int64), [size for size in sizes if size])


def _as_pickle(path: Path) -> Path:
    return path.with_suffix(".pck")  # which is refused by a sentence of its own
