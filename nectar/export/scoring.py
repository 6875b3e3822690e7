"""An exported model's figures on labelled images or rows, and these as text: of all, or of each part of its run's."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from common.code.imports import is_import_path, load
from common.config.layers import is_text
from common.config.resolved import Config
from common.config.text import join_set, parse_set
from common.config.user_parts import ImportPolicy
from common.data.folders.decode import Unreadable, dtype_of, read_image
from common.data.folders.folder import FOLDER, list_split, skipped_summary
from common.data.user.rows import cell_names, read_rows
from common.division import Division
from common.errors import ConfigError, DataError
from common.learning.compute import autocast
from common.learning.task import Classification
from common.models.building import build
from common.models.user_model import make
from common.samples.dataset import Skipped
from common.settings.images import class_name
from nectar.export.split import HELD_OUT, TRAINED, VALIDATION, RunSplit, form_of
from nectar.export.synthetic import labels_by_folder
from nectar.text import aligned

#: more classes than this make a matrix that no terminal shows; the commonest confusions stand for it
_MAX_MATRIX = 20
_MAX_PAIRS = 10

_SAID = {
    VALIDATION: "that the run held back for tuning",
    TRAINED: "that the run learned from, which say nothing about others",
}

UNKNOWN = (
    "These are not the pictures of the run, or not all and only those: whether it learned from some of them cannot be "
    "told."
)
"""What is said of a folder that was not recognised, of a run that learned from one."""


@dataclass(frozen=True)
class Score:
    """Figures over all images; ``confusion[i][j]`` counts the images of class i that were taken for class j."""

    classes: tuple[str, ...]
    accuracy: float
    loss: float
    confusion: tuple[tuple[int, ...], ...]

    @property
    def images(self) -> int:
        """How many images there were."""
        return sum(map(sum, self.confusion))

    def of_class(self, label: int) -> int:
        """Return how many images are of the class."""
        return sum(self.confusion[label])

    def taken_for(self, label: int) -> int:
        """Return how many images were taken for the class."""
        return sum(row[label] for row in self.confusion)

    def recall(self, label: int) -> float | None:
        """Return the share of the class's images that were recognised, its own accuracy; None without images."""
        return _share(self.confusion[label][label], self.of_class(label))

    def precision(self, label: int) -> float | None:
        """Return the share of right ones among the images taken for the class; None if there were none."""
        return _share(self.confusion[label][label], self.taken_for(label))

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON can hold them."""
        return {
            "images": self.images,
            "accuracy": self.accuracy,
            "loss": self.loss,
            "classes": [
                {
                    "class": name,
                    "images": self.of_class(label),
                    "taken-for": self.taken_for(label),
                    "recall": self.recall(label),
                    "precision": self.precision(label),
                }
                for label, name in enumerate(self.classes)
            ],
            "confusion": [list(row) for row in self.confusion],
        }


@torch.no_grad()
def score(
    exported: ExportedModel,
    batches: Iterable[Batch],
    device: torch.device,
    precision: str = "float32",
) -> Score:
    """Return the model's figures over ``batches``, of which there is at least one."""
    model, k = exported.network.to(device), len(exported.classes)
    tally = Classification(k).tally()
    confusion = torch.zeros(k * k, dtype=torch.int64, device=device)
    for raw, labels in batches:
        targets = labels.to(device)
        with autocast(device, precision):
            outputs = model(exported.inputs(raw.to(device)))
        tally.add(outputs, targets)
        confusion += torch.bincount(targets * k + outputs.argmax(1), minlength=k * k)
    figures = tally.result()
    table = tuple(tuple(row) for row in confusion.reshape(k, k).tolist())
    return Score(exported.classes, figures.accuracy, figures.loss, table)


def score_by_part(
    exported: ExportedModel,
    pictures: PictureFolder,
    parts: Mapping[str, str],
    device: torch.device,
    *,
    batch: int,
    precision: str = "float32",
) -> dict[str, Score]:
    """Return the figures by part, of the parts that the folder holds pictures of; those held out come first."""
    found = {}
    any_of = next(iter(parts.values()))  # for those that cannot be read, to be told with its own
    for name in (HELD_OUT, VALIDATION, TRAINED):
        of_it = {path for path in pictures.paths if parts.get(path, any_of) == name}
        if of_it:
            batches = pictures.batches(batch, of_it)
            found[name] = score(exported, batches, device, precision)
    return found


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def as_text(score: Score) -> str:
    """Return accuracy and loss, a line a class, and the confusions."""
    head = f"accuracy {score.accuracy:.4f}, loss {score.loss:.4f}, {score.images} images"
    small = len(score.classes) <= _MAX_MATRIX
    return "\n\n".join([head, _classes(score), _matrix(score) if small else _pairs(score)])


def _classes(score: Score) -> str:
    rows = [
        [
            name,
            str(score.of_class(label)),
            _figure(score.recall(label)),
            _figure(score.precision(label)),
        ]
        for label, name in enumerate(score.classes)
    ]
    title = "recall: the share of a class's images that was recognised, its own accuracy"
    return "\n".join([title, aligned([["class", "images", "recall", "precision"], *rows])])


def _matrix(score: Score) -> str:
    """Return a row a true class; columns are what its images were taken for, by number where names are long."""
    short = all(len(name) <= 6 for name in score.classes)
    width = len(str(len(score.classes) - 1))
    marks = list(score.classes) if short else [f"{i:{width}d}" for i in range(len(score.classes))]
    names = marks if short else [f"{m} {n}" for m, n in zip(marks, score.classes, strict=True)]
    rows = [
        [name, *(str(count) if count else "." for count in row)]
        for name, row in zip(names, score.confusion, strict=True)
    ]
    title = "rows: the true class; columns: what the model took its images for"
    return "\n".join([title, aligned([["", *marks], *rows])])


def _pairs(score: Score) -> str:
    wrong = [
        (count, true, taken)
        for true, row in enumerate(score.confusion)
        for taken, count in enumerate(row)
        if count and taken != true
    ]
    wrong.sort(key=lambda pair: (-pair[0], pair[1:]))
    lines = [
        f"{count} of {score.of_class(true)} {score.classes[true]} taken for {score.classes[taken]}"
        for count, true, taken in wrong[:_MAX_PAIRS]
    ]
    return "\n".join(["the commonest confusions:", *lines]) if lines else "no confusions"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def text_of(scores: Mapping[str, Score]) -> str:
    """Return the figures of what was held out in full, and a line for each other part."""
    held = scores.get(HELD_OUT)
    whole = "accuracy unknown: the run held none of these pictures out; give others, or its test pictures"
    if held is not None:
        head, _, rest = as_text(held).partition("\n")
        whole = f"{head} that the run held out\n{rest}"
    lines = [
        f"{scores[name].images} images {message}: accuracy {scores[name].accuracy:.4f}, loss {scores[name].loss:.4f}"
        for name, message in _SAID.items()
        if name in scores
    ]
    return "\n".join([whole, *(["", *lines] if lines else [])])


def as_dict(scores: Mapping[str, Score]) -> dict[str, Any]:
    """Return them as JSON can hold them: what was held out as any score, and each part in short."""
    held = scores[HELD_OUT].to_dict() if HELD_OUT in scores else {}
    short = ("images", "accuracy", "loss")
    parts = {name: {key: made.to_dict()[key] for key in short} for name, made in scores.items()}
    return held | {"parts": parts}


# ---- model ---------------------------------------------------------------------------------------
# An exported model, read again from model.json and model.safetensors; no code from its folder is run.

MODEL_SCHEMA = 1

_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, RuntimeError)
_UNREADABLE = (OSError, SafetensorError, *_DAMAGED)


@dataclass(frozen=True)
class ExportedModel:
    """The network on the CPU in evaluation mode, and what model.json says of it.

    Attributes
    ----------
    input : mapping
        Shape, scale and normalisation of what it takes.
    classes : tuple of str
        In the order of the logits.
    split : RunSplit, optional
        How its run divided its folder of images, if it had one.
    """

    folder: Path
    network: nn.Module
    input: Mapping[str, Any]
    classes: tuple[str, ...]
    run: Mapping[str, Any]
    split: RunSplit | None = None

    @classmethod
    def open(cls, folder: Path, policy: ImportPolicy | None = None) -> ExportedModel:
        """Read an export, its network's import path put before ``policy``; ConfigError if it is not one or damaged."""
        try:
            about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
            if about["schema"] != MODEL_SCHEMA:
                raise ValueError(
                    f"model.json has schema {about['schema']}, this reads {MODEL_SCHEMA}"
                )
            given = {**about["input"], "scale": float(about["input"]["scale"])}
            channels, height, width = (int(n) for n in given["shape"])
            given["shape"] = shape = (channels, height, width)
            classes = tuple(str(name) for name in about["classes"])
            network = _network(about["model"], shape, len(classes), policy)
            _check_constants(given)
            if given.get("kind", "images") != "images":
                _check_rows(given, channels)
            network.load_state_dict(load_file(folder / "model.safetensors"))
            run = dict(about["run"])
            return cls(folder, network.eval(), given, classes, run, RunSplit.of(about))
        except _UNREADABLE as error:
            reason = str(error).splitlines()[-1].strip() if str(error) else type(error).__name__
            raise ConfigError(
                f"{folder} is not an exported model that can be read ({reason}): give a folder that `nectar export` "
                "made"
            ) from None

    @property
    def kind(self) -> str:
        """What it takes: images, a table's rows or series."""
        return str(self.input.get("kind", "images"))

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of a table's columns or a series' channels."""
        return tuple(map(str, self.input.get("columns", ())))

    @property
    def cells(self) -> tuple[str, ...]:
        """The names of the cells of a line that holds one row or series."""
        return cell_names(self.columns, self.kind, self.shape[2])

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of an image: channels, height, width."""
        shape: tuple[int, int, int] = self.input["shape"]
        return shape

    @property
    def scale(self) -> float:
        """The largest raw value."""
        return float(self.input["scale"])

    def inputs(self, raw: Tensor) -> Tensor:
        """Return raw images [n, C, H, W] normalised: (raw / scale - mean) / std, float32; rows within their bounds."""
        if self.kind != "images":
            return self._rows(raw)
        mean, std = (torch.tensor(self.input[key], dtype=torch.float64) for key in ("mean", "std"))
        factor, offset = 1 / (self.scale * std), -mean / std
        shift, gain = (part.float()[:, None, None].to(raw.device) for part in (offset, factor))
        return torch.addcmul(shift, raw.float(), gain)

    def _rows(self, raw: Tensor) -> Tensor:
        low, high, mean, std = (
            torch.tensor(self.input[key], dtype=torch.float64, device=raw.device)[:, None, None]
            for key in ("low", "high", "mean", "std")
        )
        values = raw.double()  # raw values have any scale
        if len(low):
            values = values.clamp(low, high)
        return ((values - mean) / std).float()


def _network(
    model: Mapping[str, Any], shape: tuple[int, ...], classes: int, policy: ImportPolicy | None
) -> nn.Module:
    """Build Nectar's own network, or call what the import path names if ``policy`` allows it."""
    name = str(model["name"])
    if not is_import_path(name):
        return build(**model, shape=shape, classes=classes)
    if policy is not None:
        policy("model.name", name)
    return make(load(name), name, shape, classes)


def _check_constants(given: Mapping[str, Any]) -> None:
    """Refuse constants by which no image can be normalised: of a standard deviation of 0 each loss would be NaN."""
    for key in ("scale", "mean", "std"):
        for value in [given[key]] if key == "scale" else given[key]:
            if not math.isfinite(value) or (key != "mean" and value <= 0):
                above = "" if key == "mean" else " above 0"
                raise ValueError(
                    f"model.json's {key} holds {value}, where a finite number{above} is needed"
                )


def _check_rows(given: Mapping[str, Any], channels: int) -> None:
    """Refuse a description of rows that lacks a name, or has a bound for some columns alone."""
    low, high = list(map(float, given["low"])), list(map(float, given["high"]))
    bounded = len(low) == len(high) == channels and all(
        a < b for a, b in zip(low, high, strict=True)
    )
    if len(given["columns"]) != channels or not (bounded or not low + high):
        raise ValueError(
            f"model.json names {len(given['columns'])} columns and bounds for {channels}"
        )


# ---- sources -------------------------------------------------------------------------------------
# Labelled images to score a model on: a folder of pictures, or the test split of a data set.

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
        self._exported = exported
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
                    images.append(read_picture(self.folder / file.path, self._exported))
                except Unreadable as error:
                    self._skipped[file.path] = Skipped(file.path, str(error))
                    continue
                targets.append(labels[file.label])
            count += len(images)
            if images:
                yield torch.stack(images), torch.tensor(targets)
        if not count:
            reasons = "; ".join(skipped_summary(self.skipped))
            raise DataError(f"none of the pictures in {self.folder} can be read ({reasons})")


def read_picture(path: Path, exported: ExportedModel) -> Tensor:
    """Return a picture's raw values [C, H, W], float32, on the whole steps that the training images have.

    They run from 0 to the model's scale: 255 for bytes, 16 for scikit-learn's digits.

    Raises
    ------
    Unreadable
        If it is not a picture, or is damaged; the message says which.
    """
    form = form_of(exported.input)
    values = read_image(path, form).astype(np.float32)
    top = np.float32(np.iinfo(dtype_of(form)).max)
    return torch.from_numpy((values * np.float32(exported.scale) / top).round())


def row_batches(path: Path, label: str, exported: ExportedModel, size: int) -> Iterator[Batch]:
    """Yield the rows of a CSV whose column ``label`` names their classes, ``size`` at a time.

    Raises
    ------
    DataError
        If it cannot be read, lacks a column of the model's, or names a class that the model does not know.
    """
    found = read_rows(path, label)
    names, columns = list(exported.classes), list(found["columns"])
    unknown = next((name for name in found["train_labels"] if name not in names), None)
    if unknown is not None:
        raise DataError(
            f"{path} names a class {str(unknown)!r}, and the model knows {', '.join(names[:20])}"
        )
    missing = next((name for name in exported.cells if name not in columns), None)
    if missing is not None:
        raise DataError(f"{path} lacks the column {missing!r}, which the model takes")
    rows = torch.from_numpy(
        found["train_images"][:, [columns.index(name) for name in exported.cells]]
    )
    labels = torch.tensor([names.index(name) for name in found["train_labels"]])
    for first in range(0, len(rows), size):
        part = slice(first, first + size)
        yield rows[part].reshape(-1, *exported.shape), labels[part]


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
    """Return what was typed of a data set with what model.json knows of it: seed, test share, classes, form, constants.

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
    if exported.kind != "images":
        known |= {"data.kind": exported.kind, "data.scale": "standard"}
        for key, name in (
            ("images.mean", "mean"),
            ("images.std", "std"),
            ("data.low", "low"),
            ("data.high", "high"),
        ):
            if exported.input[name]:
                known[key] = ",".join(map(repr, exported.input[name]))
    elif settings.get("dataset") == "images":
        channels, side, _ = exported.shape
        known |= {"images.classes": ",".join(exported.classes)}
        known |= {"images.size": side, "images.channels": channels}
        if exported.split:
            form = exported.split.images.model_dump(
                include={"page", "white", "black", "group"}, exclude_defaults=True
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
