"""A small vision transformer (Dosovitskiy et al., 2021) that averages its patches (Beyer et al., 2022)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.models.classifier import Classifier

PATCHES = 8
"""The most patches along an image's side."""

SMALLEST_PATCH = 2
"""Pixels a side; of single pixels, which have no shape, much is to be learned by place alone."""

HEAD_WIDTH = 32


class Positions(nn.Module):
    """A learned embedding of each position, added to its token."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(places, width))

    def draw(self, generator: torch.Generator) -> None:
        """Draw the start of Dosovitskiy et al.: normal with a deviation of 0.02."""
        self.weight.normal_(0, 0.02, generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return [n, places, width] of tokens of that shape."""
        return tokens + self.weight


class Attention(nn.Module):
    """Multi-head self-attention in plain matrix products, which unlike torch's own has a second derivative."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inward = nn.Linear(width, 3 * width)
        self.outward = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, places, width] of tokens of that shape."""
        q, k, v = self.inward(x).unflatten(-1, (3, self.heads, -1)).transpose(-2, -4).unbind(-3)
        weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
        out: Tensor = self.outward((weights @ v).transpose(-2, -3).flatten(-2))
        return out


class Layer(nn.Module):
    """Attention, then two linear layers with GELU between them, each after a norm and with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, places, width] of tokens of that shape."""
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.narrow(F.gelu(self.widen(self.norm2(x))))
        return out


class ViT(Classifier):
    """Square patches as tokens, ``depth`` transformer layers, a norm, the mean over patches, one linear layer.

    A patch is the smallest square of at least 2x2 pixels that divides the image into 8 patches a side at most: 4x4
    of a 28x28 or 32x32 image. With depth 3 and width 128 it has 610,826 parameters for CIFAR-10. It has a head for
    every 32 of the width, which is a token's size, and no dropout.
    """

    def __init__(
        self, shape: tuple[int, int, int], classes: int, *, depth: int = 3, width: int = 128
    ) -> None:
        super().__init__(shape)
        heads, side = max(1, width // HEAD_WIDTH), _patch(shape)
        if width % heads:
            raise ValueError(
                f"a ViT needs a width that is a multiple of {HEAD_WIDTH} or below it, not {width} (model.width)"
            )
        self.patches = nn.Conv2d(shape[0], width, side, side)
        self.positions = Positions(shape[1] // side * (shape[2] // side), width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def embed(self, x: Tensor) -> Tensor:
        """Return the mean token after the last norm, of shape [n, width]."""
        tokens = self.positions(self.patches(x).flatten(2).transpose(1, 2))
        mean: Tensor = self.norm(self.layers(tokens)).mean(1)
        return mean


def _patch(shape: tuple[int, int, int]) -> int:
    """Return a patch's side in pixels; ValueError where only the full image would do."""
    shorter, longer = sorted(shape[1:])
    for side in range(max(SMALLEST_PATCH, -(-longer // PATCHES)), shorter // 2 + 1):
        if shorter % side == longer % side == 0:
            return side
    raise ValueError(
        f"a ViT cannot cut images of {shape[1]}x{shape[2]} into 2 to {PATCHES} square patches a side: bring them to a "
        "size that has such a divisor, or choose another model (model.name)"
    )
