"""Labelled images to score a model on: a folder of pictures, or the test split of a data set."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common.config.layers import is_text
from common.config.resolved import Config
from common.config.text import join_set, parse_set
from common.data.folders.decode import Unreadable, dtype_of, read_image
from common.data.folders.folder import FOLDER, account, list_split
from common.division import Division
from common.errors import ConfigError, DataError
from common.samples.dataset import Skipped
from common.settings.images import class_name
from nectar.export.model import ExportedModel
from nectar.export.split import form_of
from nectar.export.synthetic import labels_by_folder

Batch = tuple[Tensor, Tensor]
"""Raw images [n, C, H, W] on the data's own scale, and labels int64 [n]."""


class PictureFolder:
    """Pictures in a folder a class, read a batch at a time.

    Parameters
    ----------
    folder : Path
        Holds ``<class>/*``; a class's folder has its name, with or without the index that `nectar export` writes
        before it. A class without a folder has no images.
    exported : ExportedModel
        Whose classes and size they are read for.

    Raises
    ------
    DataError
        If there is no such folder, one in it is no class's, or two are the same one's.
    """

    def __init__(self, folder: Path, exported: ExportedModel) -> None:
        self.folder = folder
        self._labels = _class_folders(folder, exported.classes)
        self._form, self._scale = form_of(exported.input), np.float32(exported.scale)
        nested = (exported.run.get("split") or {}).get("group") == FOLDER
        listing = list_split(folder, "", list(self._labels), FOLDER if nested else "")
        self._files = listing.files
        self._skipped: dict[str, Skipped] = {one.path: one for one in listing.skipped}
        if not self._files:
            raise DataError(f"{folder} holds no pictures: put them into {folder}/<class>/")

    @property
    def paths(self) -> list[str]:
        """The pictures' paths below the folder, whether or not they can be read."""
        return [file.path for file in self._files]

    @property
    def skipped(self) -> list[Skipped]:
        """The files that were not used, with the reason of each."""
        return [*self._skipped.values()]

    def batches(self, size: int, only: Container[str] | None = None) -> Iterator[Batch]:
        """Yield the pictures that can be read, up to ``size`` at a time, and note the others in ``skipped``.

        Of all, or of those whose path below the folder is in ``only``.

        Raises
        ------
        DataError
            After the last one, if none could be read.
        """
        labels, count = list(self._labels.values()), 0
        files = [file for file in self._files if only is None or file.path in only]
        for first in range(0, len(files), size):
            images, targets = [], []
            for file in files[first : first + size]:
                try:
                    images.append(self.read(self.folder / file.path))
                except Unreadable as error:
                    self._skipped[file.path] = Skipped(file.path, str(error))
                    continue
                targets.append(labels[file.label])
            count += len(images)
            if images:
                yield torch.stack(images), torch.tensor(targets)
        if not count:
            reasons = "; ".join(account(self.skipped))
            raise DataError(f"none of the pictures in {self.folder} can be read ({reasons})")

    def read(self, path: Path) -> Tensor:
        """Return a picture's raw values [C, H, W], float32, on the whole steps that the training images have.

        They run from 0 to the model's scale: 255 for bytes, 16 for scikit-learn's digits.

        Raises
        ------
        Unreadable
            If it is no picture, or a damaged one; the message says which.
        """
        values = read_image(path, self._form).astype(np.float32)
        top = np.float32(np.iinfo(dtype_of(self._form)).max)
        return torch.from_numpy((values * self._scale / top).round())


def _class_folders(folder: Path, classes: tuple[str, ...]) -> dict[str, int]:
    """Return the labels of the class folders that there are, by name."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}: give one that holds <class>/*")
    known = labels_by_folder(classes)
    found: dict[str, int] = {}
    for entry in sorted(path for path in folder.iterdir() if path.is_dir()):
        if entry.name.startswith((".", "__")):
            continue
        name = class_name(entry.name)
        if name not in known:
            named = ", ".join(classes[:20]) + (", ..." if len(classes) > 20 else "")
            raise DataError(
                f"{entry} is a folder of no class of the model, which knows {named}: rename it, move it away, or "
                "give the folder that holds the classes' own"
            )
        if known[name] in found.values():
            raise DataError(f"{folder} has two folders for the class {classes[known[name]]}")
        found[name] = known[name]
    return found


def with_runs_own(
    settings: Mapping[str, str | int | float | bool], exported: ExportedModel
) -> dict[str, str | int | float | bool]:
    """Return what was typed of a data set with what model.json knows of its division: seed, test share, classes, form.

    Raises
    ------
    ConfigError
        If another seed was typed: it would draw test pictures that the run learned from.
    """
    split = exported.run.get("split")
    if not split:
        return dict(settings)
    seed: int = exported.run["seed"]
    if settings.get("seed", seed) != seed:
        raise ConfigError(
            f"seed={settings['seed']} would draw other test pictures than the run's seed={seed}, some of which it "
            "learned from: leave it out."
        )
    known: dict[str, Any] = {"data.test_share": split["test_share"]}
    if settings.get("dataset") == "images":
        channels, side, _ = exported.shape
        known |= {"images.classes": ",".join(exported.classes)}
        known |= {"images.size": side, "images.channels": channels}
        if exported.split:
            form = exported.split.images.model_dump(
                include={"page", "white", "group"}, exclude_defaults=True
            )
            known |= {f"images.{key}": value for key, value in form.items()}
    typed = str(settings.get("set", ""))
    return {**settings, "seed": seed, "set": join_set({**known, **parse_set(typed, is_text)})}


def split_batches(config: Config, exported: ExportedModel, size: int) -> Iterator[Batch]:
    """Yield the test images of the configured data set, ``size`` at a time.

    Raises
    ------
    DataError
        If the data set cannot be had.
    ConfigError
        If its images or classes are not the model's.
    """
    dataset = Division(config).dataset
    info, split = dataset.info, dataset.test
    ours = (exported.shape, exported.classes, exported.scale)
    if (info.shape, info.classes, info.scale) != ours or not len(split):
        raise ConfigError(
            f"the test images of {info.name} ({len(split)} of shape {info.shape}, {len(info.classes)} classes) are not "
            f"this model's, which takes {exported.shape} and knows {len(exported.classes)} classes"
        )
    for first in range(0, len(split), size):
        part = slice(first, first + size)
        yield (
            torch.from_numpy(split.images[part].copy()),
            torch.from_numpy(split.labels[part].copy()),
        )
