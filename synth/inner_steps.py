"""The student's steps on synthetic images: which batch each one takes, and how it is augmented."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from synth import augmentation
from synth.augmentation import Draw


@dataclass(frozen=True)
class InnerStep:
    """What one step is taken on, whenever it is taken: the draws are made before the first step.

    Attributes
    ----------
    batch : Tensor or None
        Int64 [b], positions in D; None for all of D.
    draw : Draw or None
        The augmentation (DSA) of the whole batch; None for none.
    """

    batch: Tensor | None = None
    draw: Draw | None = None

    def select(self, images: Tensor, labels: Tensor, lead: int = 0) -> tuple[Tensor, Tensor]:
        """Return the step's images, augmented and differentiable, and their labels.

        Parameters
        ----------
        images : Tensor
            D, float [n, C, H, W], behind ``lead`` dimensions, whose sets share the batch and the augmentation.
        labels : Tensor
            Int64 [n], or float [n, classes], behind the same dimensions.
        lead : int
            0, or 1 for the sets of several clients.
        """
        if self.batch is not None:
            images = images.index_select(lead, self.batch)
            labels = labels.index_select(lead, self.batch)
        if self.draw is not None:
            shape = images.shape
            images = augmentation.apply(images.flatten(0, lead), self.draw).reshape(shape)
        return images, labels


@dataclass(frozen=True)
class InnerTraining:
    """How the student trains on D.

    Attributes
    ----------
    epochs : int
        T_s, passes over D.
    batch : int
        Images of a step; every epoch cuts D into batches in an order of its own, the last one with what is left. 0, or
        as many as D has, takes all in one step, in D's order.
    transforms : sequence of str
        The names of DSA's transforms (`synth.augmentation.parse`), one of them drawn for each step; none for none.
    """

    epochs: int
    batch: int = 0
    transforms: Sequence[str] = ()

    def steps(self, n: int, generator: torch.Generator) -> list[InnerStep]:
        """Return the steps on ``n`` images, first to last; ValueError without epoch or image, or of a batch below 0."""
        if self.epochs < 1 or n < 1 or self.batch < 0:
            raise ValueError(
                f"{self.epochs} epochs on {n} images in batches of {self.batch} train no student: "
                "give at least 1 epoch, 1 image and a batch of 0 (all) or more"
            )
        batches: list[Tensor | None] = [None] * self.epochs
        if 0 < self.batch < n:
            orders = (
                torch.randperm(n, generator=generator, device=generator.device)
                for _ in range(self.epochs)
            )
            batches = [part for order in orders for part in torch.split(order, self.batch)]
        draws: Sequence[Draw | None] = [None] * len(batches)
        if self.transforms:
            draws = augmentation.draws(self.transforms, len(batches), generator)
        return [InnerStep(*both) for both in zip(batches, draws, strict=True)]
