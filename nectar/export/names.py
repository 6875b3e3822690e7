"""The names of classes' folders: any class list as folders whose alphabetical order is the labels'."""

from __future__ import annotations

import re
from collections.abc import Sequence

_UNFIT = re.compile(r'[\\/:*?"<>|\x00-\x1f]')


def plain_name(name: str) -> str:
    """Return a class's name with what no folder's name can hold on some system as underscores."""
    return _UNFIT.sub("_", name)


def folder_names(classes: Sequence[str]) -> list[str]:
    """Return ``00-airplane``, ``01-automobile``, ...: sorted by name they are in the order of the labels."""
    width = max(2, len(str(len(classes) - 1)))
    return [f"{label:0{width}d}-{plain_name(name)}" for label, name in enumerate(classes)]


def labels_by_folder(classes: Sequence[str]) -> dict[str, int]:
    """Return which label a folder's name stands for, with an index before the class's name or without."""
    labels = {name: label for label, name in enumerate(folder_names(classes))}
    for label, name in enumerate(classes):
        labels.setdefault(plain_name(name), label)
    return labels
