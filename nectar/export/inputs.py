"""What an exported model is given: pictures of a folder and rows of a CSV, with or without labels, and data sets."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common.config.layers import is_text
from common.config.loading import load
from common.config.resolved import Config
from common.config.text import join_set, parse_set
from common.data.folders.decode import Unreadable, dtype_of, read_image
from common.data.folders.folder import FOLDER, TEST, TRAIN, list_split, split_folders
from common.division import Division
from common.errors import ConfigError, DataError
from common.samples.dataset import Skipped, Split, number_of
from common.settings.images import ImagesSettings, class_name
from common.sites import partition_name
from nectar.export.model import ExportedModel
from nectar.export.synthetic import labels_by_folder

HELD_OUT, VALIDATION, TRAINED, UNUSED = "held out", "validation", "trained", "unused"

Batch = tuple[Tensor, Tensor]
"""Raw images [n, C, H, W] on the data's own scale, and labels int64 [n]."""


@dataclass(frozen=True)
class Input:
    """One picture or row: its raw values [C, H, W], or why it has none; and its label, -1 without one."""

    name: str
    values: Tensor | None = None
    problem: str = ""
    label: int = -1


def labelled(place: Path, exported: ExportedModel, label: str) -> Iterator[Input]:
    """Return the inputs at ``place`` with their labels: a folder of class folders, or a CSV with a column ``label``.

    Raises
    ------
    DataError
        If there is nothing of the kind, or a class that the model does not know.
    """
    if exported.input.kind == "images":
        return _of_class_folders(place, exported)
    if not label:
        raise DataError(f"{place} needs data.label=NAME, the column that holds the classes")
    return _rows(place, exported, label)


def unlabelled(place: Path, exported: ExportedModel) -> Iterator[Input]:
    """Return the inputs at ``place``: a picture, all pictures below a folder, or the rows of a CSV.

    Raises
    ------
    DataError
        If nothing is there, or the CSV lacks one of the model's columns.
    """
    return _pictures(place, exported) if exported.input.kind == "images" else _rows(place, exported)


def batches(inputs: Iterable[Input], size: int, skipped: list[Skipped]) -> Iterator[Batch]:
    """Yield labelled inputs, up to ``size`` at a time; those without values are added to ``skipped``."""
    part: list[tuple[Tensor, int]] = []
    for given in inputs:
        if given.values is None:
            skipped.append(Skipped(given.name, given.problem))
            continue
        part.append((given.values, given.label))
        if len(part) == size:
            yield _stacked(part)
            part = []
    if part:
        yield _stacked(part)


def _stacked(part: list[tuple[Tensor, int]]) -> Batch:
    return torch.stack([values for values, _ in part]), torch.tensor([label for _, label in part])


def split_batches(split: Split, size: int) -> Iterator[Batch]:
    """Yield a split's samples, ``size`` at a time."""
    for first in range(0, len(split), size):
        part = slice(first, first + size)
        yield (
            torch.from_numpy(split.images[part].copy()),
            torch.from_numpy(split.labels[part].copy()),
        )


# ---- pictures ------------------------------------------------------------------------------------


def read_picture(path: Path, exported: ExportedModel) -> Tensor:
    """Return a picture's raw values [C, H, W], float32, on the integer steps that the training images have.

    They run from 0 to the model's scale: 255 for bytes, 16 for scikit-learn's digits.

    Raises
    ------
    Unreadable
        If it is not a picture, or is damaged; the message says which.
    """
    given = exported.input
    channels, side, _ = given.shape
    bits = 16 if given.scale > 255 else 8
    form = ImagesSettings.model_validate(
        {"size": side, "channels": channels, "bits": bits, **given.form}
    )
    values = read_image(path, form).astype(np.float32)
    top = np.float32(np.iinfo(dtype_of(form)).max)
    return torch.from_numpy((values * np.float32(given.scale) / top).round())


def _picture(name: str, path: Path, exported: ExportedModel, label: int = -1) -> Input:
    try:
        return Input(name, read_picture(path, exported), label=label)
    except Unreadable as error:
        return Input(name, problem=str(error), label=label)


def _pictures(place: Path, exported: ExportedModel) -> Iterator[Input]:
    if not place.exists():
        raise DataError(f"there is no {place}: give a picture, or a folder of pictures")
    files = {place.name: place}
    if place.is_dir():
        found = {path.relative_to(place): path for path in sorted(place.rglob("*"))}
        hidden = {name for name in found if any(part.startswith(".") for part in name.parts)}
        files = {n.as_posix(): p for n, p in found.items() if n not in hidden and p.is_file()}
    if not files:
        raise DataError(f"{place} holds no files: put pictures into it")
    return (_picture(name, path, exported) for name, path in files.items())


def _of_class_folders(folder: Path, exported: ExportedModel) -> Iterator[Input]:
    """Return the pictures of ``<class>/*``; a class without a folder has no pictures."""
    labels = _class_folders(folder, exported.classes)
    nested = exported.split is not None and exported.split.group == FOLDER
    listing = list_split(folder, "", list(labels), FOLDER if nested else "")
    if not listing.files:
        raise DataError(f"{folder} holds no pictures: put them into {folder}/<class>/")
    known = list(labels.values())

    def found() -> Iterator[Input]:
        yield from (Input(each.path, problem=each.reason) for each in listing.skipped)
        for file in listing.files:
            yield _picture(file.path, folder / file.path, exported, known[file.label])

    return found()


def _class_folders(folder: Path, classes: tuple[str, ...]) -> dict[str, int]:
    """Return the labels of the class folders that there are, by name.

    A class's folder has its name, with or without the index that `nectar export` writes before it.
    """
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
                f"{entry} is not the folder of one of the model's classes ({named}): rename it, move it away, or give "
                "the folder that holds the class folders"
            )
        if known[name] in found.values():
            raise DataError(f"{folder} has two folders for the class {classes[known[name]]}")
        found[name] = known[name]
    return found


# ---- rows ----------------------------------------------------------------------------------------


def _rows(path: Path, exported: ExportedModel, label: str = "") -> Iterator[Input]:
    """Yield each line's values of the model's columns, found by name, and its class from the column ``label``."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            head = [class_name(cell) for cell in next(lines, [])]
            places = _places(path, head, exported)
            target = _place_of_label(path, head, label) if label else None
            some = False
            for cells in filter(None, lines):
                some = True
                name = f"line {lines.line_num}"
                found = _values(cells, places, len(head), exported)
                if isinstance(found, str):
                    yield Input(name, problem=found)
                    continue
                named = "" if target is None else class_name(cells[target])
                if target is not None and named not in exported.classes:
                    raise DataError(
                        f"{path}, {name}: {named!r} is not one of the model's classes, which are "
                        f"{', '.join(exported.classes[:20])}"
                    )
                yield Input(name, found, label=exported.classes.index(named) if named else -1)
            if not some:
                raise DataError(f"{path} has no row below the names of its columns")
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): give a CSV of rows") from None
    except (UnicodeDecodeError, csv.Error):
        raise DataError(
            f"{path} is not UTF-8 text with commas between its cells: save it as such"
        ) from None


def _places(path: Path, head: list[str], exported: ExportedModel) -> list[int]:
    missing = [name for name in exported.input.cells if name not in head]
    if missing:
        raise DataError(
            f"{path} lacks the column {missing[0]!r}"
            f"{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}: the model takes a CSV whose first "
            f"line names {', '.join(exported.input.cells[:8])}{', ...' if exported.input.cells[8:] else ''}"
        )
    return [head.index(name) for name in exported.input.cells]


def _place_of_label(path: Path, head: list[str], label: str) -> int:
    if class_name(label) not in head:
        raise DataError(
            f"{path} has no column {label!r}: data.label names the one of the classes; it has "
            f"{', '.join(head[:20])}{', ...' if head[20:] else ''}"
        )
    return head.index(class_name(label))


def _values(
    cells: list[str], places: list[int], wanted: int, exported: ExportedModel
) -> Tensor | str:
    """Return a line's values [C, 1, T], float64, or what is wrong with it."""
    if len(cells) != wanted:
        return f"{len(cells)} cells where the first line has {wanted}"
    found = [number_of(cells[at]) for at in places]
    if None in found:
        return f"column {exported.input.cells[found.index(None)]!r}: not a finite number"
    return torch.tensor(found, dtype=torch.float64).view(exported.input.shape)


# ---- data sets -----------------------------------------------------------------------------------


def with_runs_own(
    settings: Mapping[str, str | int | float | bool], exported: ExportedModel
) -> dict[str, str | int | float | bool]:
    """Return what was typed of a data set with what model.json knows of it: seed, split, classes, form, constants.

    Raises
    ------
    ConfigError
        If another seed was typed: it would draw test pictures that the run learned from.
    """
    if exported.split is None:
        return dict(settings)
    seed = exported.run.seed
    if settings.get("seed", seed) != seed:
        raise ConfigError(
            f"seed={settings['seed']} would draw other test pictures than the run's seed={seed}, some of which it "
            "learned from: leave it out."
        )
    known: dict[str, Any] = {"data.test_share": exported.split.test_share}
    if exported.input.kind != "images":
        known |= {"data.kind": exported.input.kind, "data.scale": "standard"}
        for key, name in (
            ("images.mean", "mean"),
            ("images.std", "std"),
            ("data.low", "low"),
            ("data.high", "high"),
        ):
            if values := getattr(exported.input, name):
                known[key] = ",".join(map(repr, values))
    elif settings.get("dataset") == "images":
        known |= _form_of(exported)
    typed = str(settings.get("set", ""))
    return {**settings, "seed": seed, "set": join_set({**known, **parse_set(typed, is_text)})}


def _form_of(exported: ExportedModel) -> dict[str, Any]:
    """Return the settings of a folder of images that the run read."""
    assert exported.split is not None
    channels, side, _ = exported.input.shape
    bits = 16 if exported.input.scale > 255 else 8
    given = {**exported.input.form, "group": exported.split.group, "bits": bits}
    unset = {key: field.default for key, field in ImagesSettings.model_fields.items()}
    return {
        "images.classes": ",".join(exported.classes),
        "images.size": side,
        "images.channels": channels,
        **{f"images.{k}": v for k, v in given.items() if v != unset[k]},
    }


def test_split(config: Config, exported: ExportedModel) -> Split:
    """Return the test images or rows of the configured data set.

    Raises
    ------
    DataError
        If the data set cannot be had.
    ConfigError
        If its images or classes are not the model's.
    """
    dataset = Division(config).dataset
    info, split = dataset.info, dataset.test
    ours = (exported.input.shape, exported.classes, exported.input.scale)
    if (info.shape, info.classes, info.scale) != ours or not len(split):
        raise ConfigError(
            f"the test images of {info.name} ({len(split)} of shape {info.shape}, {len(info.classes)} classes) are not "
            f"this model's, which takes {exported.input.shape} and knows {len(exported.classes)} classes"
        )
    return split


@dataclass(frozen=True)
class OwnPictures:
    """A run's own pictures, by what it used them for, and the files that cannot be read."""

    parts: Mapping[str, Split]
    skipped: tuple[Skipped, ...]


def own_pictures(folder: Path, exported: ExportedModel) -> OwnPictures | None:
    """Return the pictures below ``folder`` by part if they are those that the run learned from, else None.

    ``folder`` holds the class folders: it is the one that the run divided, or its ``train`` or ``test``. The
    pictures are divided again as the run divided them, and recognised by the checksum of them all.
    """
    if exported.split is None or not exported.split.folder or not exported.run.data:
        return None
    folder = folder.absolute()
    roots = [folder, folder.parent] if folder.name in (TRAIN, *TEST) else [folder]
    for root in roots:
        words = {"images.folder": str(root), "evaluation.on": "none", **exported.split.settings}
        # The decoded pictures go into a temporary store: they may be confidential.
        with TemporaryDirectory() as place, suppress(ConfigError, DataError):
            typed = {"dataset": "images", "data-dir": place, "set": join_set(words)}
            division = Division(load(with_runs_own(typed, exported)))
            train, test = split_folders(root, exported.classes)
            if division.dataset.checksum != exported.run.data:
                continue
            within = folder.name if root != folder else "."
            if within == (train or ""):
                return OwnPictures(_parts(division, held=test is None), division.dataset.skipped)
            if within == test:
                return OwnPictures({HELD_OUT: division.dataset.test}, division.dataset.skipped)
    return None


def _parts(division: Division, *, held: bool) -> dict[str, Split]:
    """Return the parts of the training folder, with the test split where it was ``held`` out of it."""
    dataset, config = division.dataset, division.config
    parts = {HELD_OUT: dataset.test} if held else {}
    learned, validation = division.learned, division.validation
    if config.data.validated_at_sites:
        shares = [
            division.share(partition_name(index), dataset, positions)
            for index, positions in enumerate(division.partition(config.federation.sites))
        ]
        learned, validation = (np.concatenate(part) for part in zip(*shares, strict=True))
    unused = np.setdiff1d(np.arange(len(dataset.train)), np.concatenate([learned, validation]))
    for name, positions in ((VALIDATION, validation), (TRAINED, learned), (UNUSED, unused)):
        if len(positions):
            parts[name] = dataset.train.at(positions)
    return parts
