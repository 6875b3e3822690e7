"""An exported model's figures on labelled images or rows, its predictions of unlabelled ones, and these as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

from common.errors import DataError
from common.learning.compute import autocast
from common.learning.task import Classification
from nectar.confusion import MAX_CLASSES, by_class, mistakes
from nectar.export.inputs import HELD_OUT, TRAINED, UNUSED, VALIDATION, Batch, Input
from nectar.export.model import ExportedModel
from nectar.text import aligned

_MAX_PAIRS = 10

_PARTS = {
    VALIDATION: "validation images",
    TRAINED: "training images (not a fair test)",
    UNUSED: "images that the run did not use",
}

UNKNOWN = "These are not exactly the run's own pictures, so it is unknown whether the model learned from some of them."
"""The remark on a folder that was not recognised, where the run learned from a folder."""


@dataclass(frozen=True)
class Score:
    """Figures over all images; ``confusion[i][j]`` counts the images of class i that were taken for class j."""

    classes: tuple[str, ...]
    accuracy: float
    loss: float
    confusion: tuple[tuple[int, ...], ...]

    @property
    def images(self) -> int:
        """The number of images."""
        return int(np.sum(self.confusion))

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON can hold them."""
        rows = by_class(self.confusion).drop(columns="f1").astype(object)
        rows.insert(0, "class", self.classes)
        return {
            "images": self.images,
            "accuracy": self.accuracy,
            "loss": self.loss,
            "classes": rows.where(rows.notna(), None).to_dict("records"),
            "confusion": [list(row) for row in self.confusion],
        }


@torch.no_grad()
def score(
    exported: ExportedModel,
    batches: Iterable[Batch],
    device: torch.device,
    precision: str = "float32",
) -> Score:
    """Return the model's figures over ``batches``; DataError without any."""
    model, k = exported.network.to(device), len(exported.classes)
    tally = Classification(k).tally()
    confusion = torch.zeros(k * k, dtype=torch.int64, device=device)
    for raw, labels in batches:
        targets = labels.to(device)
        with autocast(device, precision):
            outputs = model(exported.inputs(raw.to(device)))
        tally.add(outputs, targets)
        confusion += torch.bincount(targets * k + outputs.argmax(1), minlength=k * k)
    if not confusion.any():
        raise DataError("none of the inputs can be read: nothing to score")
    figures = tally.result()
    table = tuple(tuple(row) for row in confusion.reshape(k, k).tolist())
    return Score(exported.classes, figures.accuracy, figures.loss, table)


def as_text(score: Score) -> str:
    """Return accuracy and loss, a line a class, and the confusions."""
    head = f"accuracy {score.accuracy:.4f}, loss {score.loss:.4f}, {score.images} images"
    small = len(score.classes) <= MAX_CLASSES
    return "\n\n".join([head, _classes(score), _matrix(score) if small else _pairs(score)])


def _classes(score: Score) -> str:
    found = by_class(score.confusion)
    shares = (found[name].map(_figure) for name in ("recall", "precision"))
    rows = zip(score.classes, found["images"].map(str), *shares, strict=True)
    return aligned([["class", "images", "recall", "precision"], *rows])


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
    names = score.classes
    lines = [
        f"{found.number} of {found.examples} {names[found.true]} taken for {names[found.predicted]}"
        for found in mistakes(score.confusion, _MAX_PAIRS)
    ]
    return "\n".join(["most frequent confusions:", *lines]) if lines else "no confusions"


def _figure(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"


def parts_as_text(scores: Mapping[str, Score]) -> str:
    """Return the figures of the held-out images in full, and a line for each other part of the run's pictures."""
    held = scores.get(HELD_OUT)
    text = "accuracy unknown: the run held none of these pictures out; give others, or its test pictures"
    if held is not None:
        head, _, rest = as_text(held).partition("\n")
        text = f"{head} that the run held out\n{rest}"
    lines = [
        f"{scores[name].images} {what}: accuracy {scores[name].accuracy:.4f}, loss {scores[name].loss:.4f}"
        for name, what in _PARTS.items()
        if name in scores
    ]
    return "\n".join([text, *(["", *lines] if lines else [])])


def parts_as_dict(scores: Mapping[str, Score]) -> dict[str, Any]:
    """Return them as JSON can hold them: the held-out images' figures like any score's, the other parts' in short."""
    held = scores[HELD_OUT].to_dict() if HELD_OUT in scores else {}
    short = ("images", "accuracy", "loss")
    parts = {name: {key: made.to_dict()[key] for key in short} for name, made in scores.items()}
    return held | {"parts": parts}


# ---- predictions ---------------------------------------------------------------------------------

COLUMNS = ("input", "class", "score", "problem")
"""The columns of a table of predictions."""


@torch.no_grad()
def predictions(
    exported: ExportedModel,
    inputs: Iterator[Input],
    device: torch.device,
    *,
    batch: int,
    precision: str = "float32",
) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row of `COLUMNS` for each input, in their order; ``batch`` inputs go through the model at a time.

    The score is the class's share of the softmax. An input without values has its problem instead of both.
    """
    model = exported.network.to(device)
    while part := list(islice(inputs, batch)):
        values = [given.values for given in part if given.values is not None]
        found = iter(list[tuple[float, int]]())
        if values:
            with autocast(device, precision):
                outputs = model(exported.inputs(torch.stack(values).to(device)))
            scores, labels = outputs.float().softmax(1).max(1)
            found = zip(scores.tolist(), labels.tolist(), strict=True)
        for given in part:
            if given.values is None:
                yield given.name, "", "", given.problem
            else:
                score, label = next(found)
                yield given.name, exported.classes[label], f"{score:.6g}", ""
