"""The multilayer perceptron of the federated learning literature: one hidden layer."""

from __future__ import annotations

import math

from torch import Tensor, nn

from common.models.classifier import Classifier


class MLP(Classifier):
    """A linear layer of ``width`` hidden units with ReLU, then a linear layer for the logits.

    With 200 hidden units it has 159,010 parameters for MNIST's images and ten classes. The
    embedding is the hidden units' output.

    Raises
    ------
    ValueError
        There is no hidden unit.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int, *, width: int = 200) -> None:
        super().__init__(shape)
        if width < 1:
            raise ValueError(f"an MLP needs at least 1 hidden unit, not {width} (model.width)")
        self.features = nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(shape), width), nn.ReLU(inplace=True)
        )
        self.head = nn.Linear(width, classes)

    def embed(self, x: Tensor) -> Tensor:
        """Return the hidden units' output, of shape [n, width]."""
        hidden: Tensor = self.features(x)
        return hidden
