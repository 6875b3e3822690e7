"""What is learned: the loss a model is trained with and the figures it is judged by."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Evaluation:
    """Figures over a whole set: mean loss, accuracy, accuracy a class (NaN for a class the set lacks)."""

    loss: float
    accuracy: float
    per_class: tuple[float, ...]
    examples: int


class Classification:
    """One label an image; softmax cross-entropy, with hard labels int64 [n] or soft ones float [n, classes]."""

    def __init__(self, classes: int) -> None:
        self.classes = classes

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean loss, each example counting ``weights`` [n] times (default once)."""
        if weights is None:
            return F.cross_entropy(outputs, targets)
        return (F.cross_entropy(outputs, targets, reduction="none") * weights).mean()

    def tally(self) -> Tally:
        """Return an empty account to add batches to."""
        return Tally(self.classes)


class Tally:
    """Sums over batches that stay on the device until ``result`` asks for them."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self._loss: Tensor | None = None
        self._hits: Tensor | None = None
        self._seen: Tensor | None = None

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: outputs [n, classes], hard targets [n]."""
        loss = F.cross_entropy(outputs.float(), targets, reduction="sum").double()
        correct = targets[outputs.argmax(1) == targets]
        hits = torch.bincount(correct, minlength=self.classes)
        seen = torch.bincount(targets, minlength=self.classes)
        self._loss = loss if self._loss is None else self._loss + loss
        self._hits = hits if self._hits is None else self._hits + hits
        self._seen = seen if self._seen is None else self._seen + seen

    def result(self) -> Evaluation:
        """Return the figures; ValueError if nothing was added."""
        if self._loss is None or self._hits is None or self._seen is None:
            raise ValueError("an evaluation needs at least one example")
        n = int(self._seen.sum())
        per_class = (self._hits.double() / self._seen.double()).tolist()
        return Evaluation(
            loss=float(self._loss) / n,
            accuracy=int(self._hits.sum()) / n,
            per_class=tuple(per_class),
            examples=n,
        )
