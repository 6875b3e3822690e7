"""The folders of classes in a person's folder of images."""

from __future__ import annotations

from pathlib import Path

from common.data.folders.folder import PLAIN, TEST, TRAIN, entries
from common.settings.images import class_name


def class_folders(folder: Path) -> list[str]:
    """Return the classes' folders, sorted, of train/, a test folder or ``folder``; DataError if one is unreadable."""
    if not folder.is_dir():
        return []
    split = next((name for name in (TRAIN, *TEST) if (folder / name).is_dir()), PLAIN)
    return sorted({class_name(entry.name) for entry in entries(folder / split) if entry.is_dir()})
