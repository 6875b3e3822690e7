"""An exported model's figures on labelled images, and those figures as text: of all, or of each part of its run's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from common.learning.compute import autocast
from common.learning.task import Classification
from nectar.export.model import ExportedModel
from nectar.export.sources import Batch, PictureFolder
from nectar.export.split import HELD_OUT, TRAINED, VALIDATION

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
    return "\n".join([title, _table([["class", "images", "recall", "precision"], *rows])])


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
    return "\n".join([title, _table([["", *marks], *rows])])


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


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Align the first column left and the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def text_of(scores: Mapping[str, Score]) -> str:
    """Return the figures of what was held out in full, and a line for each other part."""
    held = scores.get(HELD_OUT)
    whole = "accuracy unknown: the run held none of these pictures out; give others, or its test pictures"
    if held is not None:
        head, _, rest = as_text(held).partition("\n")
        whole = f"{head} that the run held out\n{rest}"
    lines = [
        f"{scores[name].images} images {said}: accuracy {scores[name].accuracy:.4f}, loss {scores[name].loss:.4f}"
        for name, said in _SAID.items()
        if name in scores
    ]
    return "\n".join([whole, *(["", *lines] if lines else [])])


def as_dict(scores: Mapping[str, Score]) -> dict[str, Any]:
    """Return them as JSON can hold them: what was held out as any score, and each part in short."""
    held = scores[HELD_OUT].to_dict() if HELD_OUT in scores else {}
    short = ("images", "accuracy", "loss")
    parts = {name: {key: made.to_dict()[key] for key in short} for name, made in scores.items()}
    return held | {"parts": parts}
