"""What is learned: the loss a model is trained with and the figures of its evaluation.

Classification gives an image one label; next-token prediction gives every place of a text the token that follows.
Training, evaluation, the cuts of the data, record and report ask the task, and know no kind of it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from common.samples.dataset import PAD, UNK, DatasetInfo, Split
from common.wire.weights import Weights, WeightsSpec


@dataclass(frozen=True)
class Evaluation:
    """Figures over a complete set.

    Attributes
    ----------
    loss, accuracy : float
        Means over what counts.
    per_class : tuple of float
        Accuracy a class (NaN for a class the set lacks); empty if the task has no classes.
    examples : int
        What counts: labels, or the places of texts that have a target.
    f1, balanced, auc : float
        As `common.learning.measures` has them, else NaN.
    confusion : tuple of tuple of int
        How many examples of each class (rows) were predicted to be of each one.
    """

    loss: float
    accuracy: float
    per_class: tuple[float, ...]
    examples: int
    f1: float = math.nan
    balanced: float = math.nan
    auc: float = math.nan
    confusion: tuple[tuple[int, ...], ...] = ()


class Task(ABC):
    """What is learned from targets among ``classes`` classes (for text: the size of the vocabulary).

    With ``by_class`` figures and counts are given for each class.
    """

    by_class: bool

    def __init__(self, classes: int) -> None:
        self.classes = classes

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean loss, a scalar, each example counting ``weights`` [n] times (default once)."""

    @abstractmethod
    def tally(self) -> Tally:
        """Return an empty account to add batches to."""

    @abstractmethod
    def counted(self, targets: Tensor) -> Tensor:
        """Return the targets that count, flat, int64 [k]."""

    @abstractmethod
    def class_counts(self, targets: Tensor) -> list[int] | None:
        """Return how many of ``targets`` fall into each class; None if that is not given."""

    @abstractmethod
    def strata(self, split: Split) -> NDArray[np.int64]:
        """Return the strata of ``split`` for stratified cuts, int64 [n]."""


class Classification(Task):
    """One label an image; softmax cross-entropy, with hard labels int64 [n] or soft ones float [n, classes]."""

    by_class = True

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean loss of outputs [n, classes], each example counting ``weights`` [n] times (default once)."""
        if weights is None:
            return F.cross_entropy(outputs, targets)
        return (F.cross_entropy(outputs, targets, reduction="none") * weights).mean()

    def tally(self) -> ClassTally:
        """Return an empty account to add batches to."""
        return ClassTally(self.classes)

    def counted(self, targets: Tensor) -> Tensor:
        """Return the labels, all of which count."""
        return targets

    def class_counts(self, targets: Tensor) -> list[int]:
        """Return how many of the labels [n] fall into each class."""
        counts: list[int] = torch.bincount(targets, minlength=self.classes).tolist()
        return counts

    def strata(self, split: Split) -> NDArray[np.int64]:
        """Return the labels: cuts take of each class in proportion."""
        return split.labels


class NextToken(Task):
    """The token that follows, at every place of a text: targets int64 [n, T], outputs [n, T, vocabulary].

    A place whose target is `PAD` has none and does not count. Accuracy has the hits of LEAF (Caldas et al., 2018, the
    published code of the Reddit model): predicting `UNK` or `PAD` is always wrong, though the places of `UNK` count in
    the divisor. LEAF also divides by the place of each comment's last token, which nothing follows and no model can get
    right; on its sample of Reddit its figure is 0.982 times this one.
    """

    by_class = False

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean cross-entropy over the places that count, an example's times its ``weights`` [n].

        Without such a place it is 0. The shapes depend on no value, so that it runs under ``torch.func.vmap``.
        """
        places = F.cross_entropy(
            outputs.flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction="none"
        )
        if weights is not None:
            places = places * weights.repeat_interleave(targets.shape[1])
        return places.sum() / (targets != PAD).sum().clamp_min(1)

    def tally(self) -> TokenTally:
        """Return an empty account to add batches to."""
        return TokenTally()

    def counted(self, targets: Tensor) -> Tensor:
        """Return the targets that are not `PAD`, row by row."""
        return targets[targets != PAD]

    def class_counts(self, targets: Tensor) -> None:
        """Return None: a vocabulary a site is no table to read."""

    def strata(self, split: Split) -> NDArray[np.int64]:
        """Return each text's natural owner, so that cuts take of each in proportion; zeros if it has none."""
        return np.zeros(len(split), dtype=np.int64) if split.owners is None else split.owners


def task_of(info: DatasetInfo) -> Task:
    """Return the task of the data set that ``info`` describes."""
    kinds: dict[str, type[Task]] = {"classification": Classification, "next-token": NextToken}
    return kinds[info.task](len(info.classes))


class Tally(ABC):
    """Sums over batches that stay on the device until ``result`` asks for them."""

    def __init__(self) -> None:
        self._loss = torch.zeros((), dtype=torch.float64)
        self._hits = self._seen = torch.zeros((), dtype=torch.int64)

    @abstractmethod
    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: the model's outputs and the hard targets they are compared with."""

    def _add(self, logits: Tensor, true: Tensor, hits: Tensor, seen: Tensor) -> None:
        loss = F.cross_entropy(logits.float(), true, reduction="sum").double()
        self._loss, self._hits, self._seen = self._loss + loss, self._hits + hits, self._seen + seen

    def result(self) -> Evaluation:
        """Return the figures; ValueError if nothing that counts was added."""
        n = int(self._seen.sum())
        if not n:
            raise ValueError("an evaluation needs at least one example that has a target")
        per_class = (self._hits.double() / self._seen.double()).tolist() if self._seen.ndim else ()
        return Evaluation(
            loss=float(self._loss) / n,
            accuracy=int(self._hits.sum()) / n,
            per_class=tuple(per_class),
            examples=n,
        )


class ClassTally(Tally):
    """Classification's: loss, and hits and labels seen by class."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: outputs [n, classes], hard targets [n]."""
        # by shapes that no value decides: a GPU need not be waited for
        right, none = outputs.argmax(1) == targets, targets.new_zeros(self.classes)
        hits = none.index_add(0, targets, right.to(targets.dtype))
        self._add(outputs, targets, hits, none.index_add(0, targets, torch.ones_like(targets)))


class TokenTally(Tally):
    """Next-token prediction's: loss, hits and number of the places that count."""

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: outputs [n, T, vocabulary], targets [n, T]; only the places that count are looked at."""
        counts = targets != PAD
        logits, true = outputs[counts], targets[counts]
        hits = ((logits.argmax(1) == true) & (true != UNK)).sum()
        self._add(logits, true, hits, counts.sum())


# ---- updates -------------------------------------------------------------------------------------
# An update, what local training adds to a round's weights, as one flat tensor and back.


def length(spec: WeightsSpec) -> int:
    """Return how many numbers an update has: those of the state's floating tensors."""
    sizes = zip(spec.shapes, spec.dtypes, strict=True)
    return sum(math.prod(shape) for shape, dtype in sizes if dtype.is_floating_point)


def difference(new: Weights, old: Weights) -> Tensor:
    """Return new - old over the floating tensors in the model's order, running statistics too: float32 [length]."""
    parts = [
        (new.read_only[name].float() - tensor.float()).flatten()
        for name, tensor in old.read_only.items()
        if tensor.is_floating_point()
    ]
    return torch.cat(parts)


def plus(weights: Weights, update: Tensor) -> Weights:
    """Return ``weights`` with a flat ``update``, floating [length], added in float64; integers are kept.

    Each tensor keeps its dtype and is rounded to it once.
    """
    sums, start = {}, 0
    for name, tensor in weights.read_only.items():
        if not tensor.is_floating_point():
            sums[name] = weights.tensors[name]
            continue
        part = update[start : start + tensor.numel()].view(tensor.shape)
        sums[name] = (tensor.double() + part).to(tensor.dtype)
        start += tensor.numel()
    return Weights(sums, weights.codec)
