"""ResNet-18 and -34 (He et al., 2016), under torchvision's names except for the last layer, which is ``head``."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from common.models.classifier import Classifier

STANDARD_FROM = 64
"""Pixels of the shorter side from which the stem is ImageNet's; below, it keeps an image's size."""

RESIDUAL_NORMS: dict[str, Callable[[int], nn.Module]] = {
    "instance": lambda width: nn.GroupNorm(width, width),
    "group": lambda width: nn.GroupNorm(2, width),
    "batch": nn.BatchNorm2d,
}
"""Two groups are those of federated work on these networks (Hsieh et al., 2020; FedDyn's code)."""


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with their norms and a shortcut, which is a 1x1 one where the size changes."""

    def __init__(
        self, channels: int, width: int, stride: int, norm: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = norm(width)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels != width:
            shortcut = nn.Conv2d(channels, width, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, norm(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, width, H / stride, W / stride] of ``x`` [n, channels, H, W]."""
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)), inplace=True)


class ResNet18(Classifier):
    """A stem, four stages of basic blocks with 64 to 512 channels, the mean over places, one linear layer.

    From 64 pixels on the stem is ImageNet's, a 7x7 convolution and a 3x3 max pool, both of stride 2: 11,689,512
    parameters for 1,000 classes. Below, it is a 3x3 convolution alone, as in the literature on CIFAR: 11,173,962 for
    32x32 colour images and ten classes.
    """

    blocks: ClassVar[tuple[int, ...]] = (2, 2, 2, 2)
    channels: ClassVar[tuple[int, ...]] = (64, 128, 256, 512)

    def __init__(
        self, shape: tuple[int, int, int], classes: int, *, norm: str = "instance"
    ) -> None:
        super().__init__(shape)
        if norm not in RESIDUAL_NORMS:
            raise ValueError(
                f"a ResNet has no norm {norm!r}: choose one of {', '.join(RESIDUAL_NORMS)} (model.norm)"
            )
        if norm == "instance" and max(shape[1:]) <= 8:
            raise ValueError(
                f"with images of {shape[1]}x{shape[2]} a ResNet's last feature map is 1x1, which instance norm would "
                "zero: use model.norm=group or batch"
            )
        made, width = RESIDUAL_NORMS[norm], self.channels[0]
        self.standard = min(shape[1:]) >= STANDARD_FROM
        side, stride, padding = (7, 2, 3) if self.standard else (3, 1, 1)
        self.conv1 = nn.Conv2d(shape[0], width, side, stride, padding, bias=False)
        self.bn1 = made(width)
        for number, (count, out) in enumerate(zip(self.blocks, self.channels, strict=True), 1):
            first = BasicBlock(width, out, 1 if number == 1 else 2, made)
            others = (BasicBlock(out, out, 1, made) for _ in range(count - 1))
            self.add_module(f"layer{number}", nn.Sequential(first, *others))
            width = out
        self.head = nn.Linear(width, classes)

    def embed(self, x: Tensor) -> Tensor:
        """Return the last stage's means over places, of shape [n, 512]."""
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        if self.standard:
            out = F.max_pool2d(out, 3, 2, padding=1)
        for number in range(1, len(self.blocks) + 1):
            out = self.get_submodule(f"layer{number}")(out)
        return out.mean((2, 3))


class ResNet34(ResNet18):
    """ResNet-18 with 3, 4, 6 and 3 blocks: 21,797,672 parameters for 1,000 classes from 64 pixels on."""

    blocks: ClassVar[tuple[int, ...]] = (3, 4, 6, 3)
