"""VGG-11 (Simonyan and Zisserman, 2015, configuration A), without batch norm and dropout."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.models.classifier import Classifier

LARGE_FROM = 64
"""Pixels of the shorter side from which the hidden layers are ImageNet's."""


class HeConv2d(nn.Conv2d):
    """A convolution that keeps a signal's size through ReLUs, which no norm does for this network."""

    def draw(self, generator: torch.Generator) -> None:
        """Draw He et al.'s start (2015), as NIID-Bench and torchvision do: normal, by the numbers going out."""
        going_out = self.weight[:, 0].numel()
        self.weight.normal_(0, math.sqrt(2 / going_out), generator=generator)
        if self.bias is not None:
            self.bias.zero_()


class VGG11(Classifier):
    """Eight 3x3 convolutions with ReLU and five 2x2 max pools, two hidden layers, one linear layer.

    From 64 pixels on the hidden layers have 4,096 units and take 7x7 places, as torchvision's: 132,863,336 parameters
    for 1,000 classes. Below they have 512 units and take the mean over places, which is the one place that is left
    of a 32x32 image, as NIID-Bench's: 9,750,922 for ten classes. A pool that would leave nothing of a small
    image is left out. There is no dropout, so that one input gives one output. The embedding is the second
    hidden layer's output.
    """

    plan: ClassVar[tuple[tuple[int, ...], ...]] = (
        (64,), (128,), (256, 256), (512, 512), (512, 512)
    )  # fmt: skip
    hidden: ClassVar[tuple[int, int]] = (512, 4096)

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__(shape)
        channels, *sides = shape
        large = min(sides) >= LARGE_FROM
        self.places = 7 if large else 1
        layers: list[nn.Module] = []
        for widths in self.plan:
            for width in widths:
                layers += [HeConv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            if min(sides) > 1:
                layers.append(nn.MaxPool2d(2))
                sides = [side // 2 for side in sides]
        units = self.hidden[large]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(channels * self.places**2, units),
            nn.ReLU(inplace=True),
            nn.Identity(),  # where dropout stands in torchvision's, whose names these are
            nn.Linear(units, units),
            nn.ReLU(inplace=True),
        )
        self.head = nn.Linear(units, classes)

    def embed(self, x: Tensor) -> Tensor:
        """Return the second hidden layer's output, of shape [n, 512] or [n, 4096]."""
        out = F.adaptive_avg_pool2d(self.features(x), self.places)
        hidden: Tensor = self.classifier(out.flatten(1))
        return hidden
