"""An exported model's figures on labelled images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from common.learning.compute import autocast
from common.learning.task import Classification
from nectar.export.model import ExportedModel

Batch = tuple[Tensor, Tensor]
"""Raw images [n, C, H, W] on the data's own scale, and labels int64 [n]."""


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


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
