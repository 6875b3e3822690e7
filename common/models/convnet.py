"""ConvNet, the network of the dataset-distillation papers: equal blocks, then one linear layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.models.classifier import Classifier
from common.models.pooling import MaxPool2d

GROUPS = 4
"""Groups of the group normalisation, as in the public distillation code."""

# Instance normalisation is one group a channel: the same numbers as nn.InstanceNorm2d, without
# copying the affine parameters once per image.
_NORMS: dict[str, Callable[[int], nn.Module]] = {
    "instance": lambda width: nn.GroupNorm(width, width),
    "group": lambda width: nn.GroupNorm(GROUPS, width),
    "batch": nn.BatchNorm2d,
    "none": lambda width: nn.Identity(),
}


class HalvingPool(nn.Module):
    """2x2 average pooling with stride 2; an odd last row or column is left out.

    On a CPU the sums of neighbouring rows, then columns, are 3 to 9 times as fast as torch's own
    pooling, which at these sizes costs as much as the convolutions; the numbers differ in the last
    bit only.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the means of the 2x2 squares of ``x``: [n, C, H, W] -> [n, C, H // 2, W // 2]."""
        if not x.is_cpu:
            return F.avg_pool2d(x, 2)
        height, width = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
        rows = x[..., 0:height:2, :] + x[..., 1:height:2, :]
        return (rows[..., 0:width:2] + rows[..., 1:width:2]) * 0.25


class ConvNet(Classifier):
    """``depth`` blocks of [3x3 convolution, norm, ReLU, 2x2 average pool], then one linear layer.

    With depth 3, width 128 and instance norm it has 320,010 parameters on CIFAR-10, 504,420 on
    CIFAR-100 and 317,706 on MNIST. The first convolution pads images of 28x28 by 3 instead of 1, to
    32x32, as the papers' code does. Each block halves the sides; ``norm`` is "instance" (affine), "group"
    (4 groups), "batch" or "none".
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        *,
        depth: int = 3,
        width: int = 128,
        norm: str = "instance",
    ) -> None:
        super().__init__(shape)
        channels, height, width_px = shape
        pad = 2 if (height, width_px) == (28, 28) else 0
        sides = (height + 2 * pad, width_px + 2 * pad)
        largest = min(sides).bit_length() - 1
        if depth > largest:
            raise ValueError(
                f"a ConvNet of depth {depth} cannot be built for images of {height}x{width_px}: every block halves the "
                f"image, so depth goes from 1 to {largest} there (model.depth)"
            )
        if norm == "group" and width % GROUPS:
            raise ValueError(
                f"group norm needs a width divisible by {GROUPS}, not {width} (model.width)"
            )
        blocks: list[nn.Module] = []
        for block in range(depth):
            blocks += [
                nn.Conv2d(width if block else channels, width, 3, padding=1 if block else 1 + pad),
                _NORMS[norm](width),
                nn.ReLU(inplace=True),  # no norm's backward needs its output; saves a copy a block
                HalvingPool(),
            ]
        self.features = nn.Sequential(*blocks)
        self.head = nn.Linear(width * (sides[0] >> depth) * (sides[1] >> depth), classes)


# ---- cnn -----------------------------------------------------------------------------------------
# The two-convolution CNN of the federated averaging literature.


class CNN(Classifier):
    """Two 5x5 convolutions, 512 hidden units and one linear layer.

    The convolutions have 32 and 64 channels and no padding; ReLU and a 2x2 max pool follow each. It
    has 878,538 parameters for 32x32 colour images and ten classes. The embedding is the hidden
    units' output.
    """

    #: its name, the least side, the network for smaller images, the convolutions' padding, the hidden units
    form: ClassVar[tuple[str, int, str, int, int]] = ("cnn", 16, "convnet", 0, 512)

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__(shape)
        channels, height, width = shape
        name, least, other, padding, hidden = self.form
        if min(height, width) < least:
            raise ValueError(
                f'model "{name}" needs images of at least {least}x{least}, not {height}x{width}: '
                f'choose model.name "{other}" for these'
            )
        lost = 4 - 2 * padding
        rows, columns = (((side - lost) // 2 - lost) // 2 for side in (height, width))
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=padding),
            nn.ReLU(inplace=True),
            MaxPool2d(),
            nn.Conv2d(32, 64, 5, padding=padding),
            nn.ReLU(inplace=True),
            MaxPool2d(),
            nn.Flatten(),
            nn.Linear(64 * rows * columns, hidden),
            nn.ReLU(inplace=True),
        )
        self.head = nn.Linear(hidden, classes)


class LeafCNN(CNN):
    """The CNN that LEAF trains on FEMNIST (Caldas et al., 2018, the benchmark's published code).

    As `CNN`, with convolutions that keep the image's size, 2,048 hidden units, and sides of at least
    4. It has 6,603,710 parameters for FEMNIST's 28x28 images and 62 classes.
    """

    form = ("leafcnn", 4, "mlp", 2, 2048)


# ---- vgg -----------------------------------------------------------------------------------------
# VGG-11 (Simonyan and Zisserman, 2015, configuration A), without batch norm and dropout.

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
                layers.append(MaxPool2d())
                sides = [side // 2 for side in sides]
        units = self.hidden[large]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(channels * self.places**2, units),
            nn.ReLU(inplace=True),
            nn.Identity(),  # where torchvision's, whose names these are, has dropout
            nn.Linear(units, units),
            nn.ReLU(inplace=True),
        )
        self.head = nn.Linear(units, classes)

    def embed(self, x: Tensor) -> Tensor:
        """Return the second hidden layer's output, of shape [n, 512] or [n, 4096]."""
        out = F.adaptive_avg_pool2d(self.features(x), self.places)
        hidden: Tensor = self.classifier(out.flatten(1))
        return hidden
