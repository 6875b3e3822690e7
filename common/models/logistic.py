"""Logistic regression: one linear layer on the pixels."""

from __future__ import annotations

import math

from torch import Tensor, nn

from common.models.classifier import Classifier


class Logistic(Classifier):
    """A linear layer; the embedding is the flat image.

    It has 7,850 parameters for MNIST's images and ten classes.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__(shape)
        self.head = nn.Linear(math.prod(shape), classes)

    def embed(self, x: Tensor) -> Tensor:
        """Return the pixels, of shape [n, C * H * W]."""
        return x.flatten(1)
