"""The publishers' files: where they lie and how they are checked before any is used."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common.errors import DataError
from common.samples.dataset import Split


@dataclass(frozen=True)
class SourceFile:
    """One published file."""

    path: str
    split: Literal["train", "test"]
    md5: str
    archive: str


@dataclass(frozen=True)
class DownloadSource:
    """Where a data set comes from."""

    torchvision: str
    files: tuple[SourceFile, ...]
    read: Callable[[Path, tuple[SourceFile, ...]], tuple[Split, Split]]

    def paths(self, data_dir: Path) -> list[Path]:
        """Return where its files lie, if they are there."""
        return [data_dir / file.path for file in self.files]

    def missing(self, data_dir: Path) -> list[SourceFile]:
        """Return the files that are not below ``data_dir``."""
        return [file for file in self.files if not (data_dir / file.path).is_file()]

    def splits(self, data_dir: Path) -> tuple[Split, Split]:
        """Return the training and the test split; DataError if a file is missing, truncated or damaged, naming it."""
        return self.read(data_dir, self.files)

    def fingerprint(self, data_dir: Path) -> str:
        """Return what tells a store built from these files from one built from others."""
        listing = "\n".join(f"{file.md5} {file.path}" for file in self.files)
        return hashlib.sha256(listing.encode()).hexdigest()


def read_verified(data_dir: Path, file: SourceFile) -> bytes:
    """Return a published file's content by its checksum; DataError if it is another or cannot be read."""
    path = data_dir / file.path
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}); it comes from {file.archive}"
        ) from error
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if md5 != file.md5:
        raise DataError(
            f"{path} is truncated or damaged: its {len(content):,} bytes have the md5 {md5}, the "
            f"published file has {file.md5}; delete it (it is downloaded again) or unpack "
            f"{file.archive} again"
        )
    return content
