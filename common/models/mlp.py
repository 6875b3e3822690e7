"""The multilayer perceptron of the federated learning literature: one hidden layer."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from common.models.classifier import Classifier


class MLP(Classifier):
    """A linear layer of ``width`` hidden units with ReLU, then a linear layer for the logits.

    With 200 hidden units it has 159,010 parameters for MNIST's images and ten classes. The
    embedding is the hidden units' output.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int, *, width: int = 200) -> None:
        super().__init__(shape)
        self.features = nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(shape), width), nn.ReLU(inplace=True)
        )
        self.head = nn.Linear(width, classes)


# ---- logistic ------------------------------------------------------------------------------------
# Logistic regression: one linear layer on the pixels.


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


# ---- conv1d --------------------------------------------------------------------------------------
# A small convolutional network along time, for series.

_REACH = 5
"""Steps that a convolution sees at once."""


class Halving(nn.Module):
    """Means of two neighbouring steps; an odd last one is left out."""

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, C, 1, T] as [n, C, 1, T // 2]."""
        return F.avg_pool2d(x, (1, 2))


class Conv1d(Classifier):
    """``depth`` blocks of a convolution over 5 steps, a norm, ReLU and a mean of two steps; then means over time.

    A series [C, T] comes as an image that is one pixel high. The embedding is the mean of each channel over the steps
    that are left, so that it does not matter when something happens. The norm is over all channels and steps:
    without one, steps along the gradient of a synthetic series soon lead out of the finite numbers.
    """

    def __init__(
        self, shape: tuple[int, int, int], classes: int, *, depth: int = 3, width: int = 32
    ) -> None:
        super().__init__(shape)
        channels, height, steps = shape
        if height != 1:
            raise ValueError(
                f"a conv1d takes series, not images of {height}x{steps}: choose convnet (model.name)"
            )
        if depth >= steps.bit_length():
            raise ValueError(
                f"a conv1d of depth {depth} cannot be built for series of {steps} steps: every block halves them, so "
                f"depth goes from 1 to {steps.bit_length() - 1} there (model.depth)"
            )
        blocks: list[nn.Module] = []
        for block in range(depth):
            blocks += [
                nn.Conv2d(
                    width if block else channels, width, (1, _REACH), padding=(0, _REACH // 2)
                ),
                nn.GroupNorm(1, width),
                nn.ReLU(inplace=True),
                Halving(),
            ]
        self.features = nn.Sequential(*blocks)
        self.head = nn.Linear(width, classes)

    def embed(self, x: Tensor) -> Tensor:
        """Return the channels' means over time, of shape [n, width]."""
        features: Tensor = self.features(x)
        return features.mean((2, 3))
