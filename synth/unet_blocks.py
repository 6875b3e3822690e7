"""What a U-Net is made of: residual blocks under conditions, attention, and stages of both."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEAD = 64
"""Channels of an attention head; a layer with fewer channels has one head."""
_GROUPS = 32


class ResidualBlock(nn.Module):
    """x + f(x), f two convolutions, the second's norm scaled and shifted by the conditions.

    Parameters
    ----------
    dropout : float
        The share of values dropped before the second convolution.
    resample : str
        "down" halves the sides before the first convolution, "up" doubles them, "" leaves them.
    """

    def __init__(
        self, channels: int, out: int, conditions: int, dropout: float, resample: str = ""
    ) -> None:
        super().__init__()
        self.dropout, self.resample = dropout, resample
        self.norm1 = norm(channels)
        self.conv1 = nn.Conv2d(channels, out, 3, padding=1)
        self.film = nn.Linear(conditions, 2 * out)
        self.norm2 = norm(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        self.skip = nn.Identity() if channels == out else nn.Conv2d(channels, out, 1)

    def forward(self, x: Tensor, conditions: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the block's output, float [n, out, H', W']."""
        h = _resampled(F.silu(self.norm1(x)), self.resample)
        h = self.conv1(h)
        scale, shift = self.film(conditions)[:, :, None, None].chunk(2, 1)
        h = F.silu(torch.addcmul(shift, self.norm2(h), 1 + scale))
        if generator is not None and self.dropout:
            h = h * _kept(h, 1 - self.dropout, generator)
        out: Tensor = self.skip(_resampled(x, self.resample)) + self.conv2(h)
        return out


class Attention(nn.Module):
    """x + self-attention among the pixels of x, with heads of `HEAD` channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.heads = max(1, channels // HEAD)
        self.norm = norm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.project = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return x + attention(x), float [n, C, H, W]."""
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        qkv = self.qkv(pixels).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        h = attended(*qkv.unbind()).transpose(1, 2).flatten(2)
        out: Tensor = x + self.project(h).transpose(1, 2).unflatten(2, x.shape[-2:])
        return out


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return softmax(Q K^T / sqrt(d)) V, float [n, heads, pixels, d].

    In bfloat16 on a CPU by its definition, which is 1.4 to 2.8 times as fast there, forward and backward,
    as torch's own kernel; in float32 that one is up to 1.4 times as fast, and spares the products' memory.
    """
    if q.is_cpu and q.dtype == torch.bfloat16:
        return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v
    return F.scaled_dot_product_attention(q, k, v)


class Stage(nn.Module):
    """A residual block, the attention after it and the resampling block after that, where there are."""

    def __init__(
        self,
        block: ResidualBlock,
        attention: Attention | None = None,
        last: ResidualBlock | None = None,
    ) -> None:
        super().__init__()
        self.block, self.attention, self.last = block, attention, last

    def forward(self, h: Tensor, conditions: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the last layer's output."""
        h = self.block(h, conditions, generator)
        if self.attention is not None:
            h = self.attention(h)
        return h if self.last is None else self.last(h, conditions, generator)


def _kept(h: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Return dropout's factors for ``h``: 1/share with that probability, else 0.

    Drawn with the channels last and then turned, so that one seed keeps the same values however ``h`` lies in
    memory.
    """
    n, channels, height, width = h.shape
    kept = torch.empty(n, height, width, channels, device=h.device, dtype=h.dtype)
    return kept.bernoulli_(share, generator=generator).div_(share).permute(0, 3, 1, 2)


def norm(channels: int) -> nn.GroupNorm:
    """Return a group norm of 32 groups, or fewer, so that a group has two channels at least."""
    return nn.GroupNorm(math.gcd(_GROUPS, channels // 2), channels)


def _resampled(x: Tensor, resample: str) -> Tensor:
    """Return the means of 2x2 squares, those at an odd border of fewer pixels, or every pixel four times."""
    if resample == "down":
        return F.avg_pool2d(x, 2, ceil_mode=True)
    return F.interpolate(x, scale_factor=2.0) if resample == "up" else x
