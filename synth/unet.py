"""The U-Net that predicts the noise in an image, given the time step and the class (Fedssyn's DDPM).

It is the network of Dhariwal and Nichol 2021 at the size of Fedssyn's released code: residual blocks
that the time step and the class scale and shift, resampling inside of residual blocks, and attention.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from synth.ensemble_distillation import fill

_LONGEST_PERIOD = 10_000


class UNet(nn.Module):
    """eps(x_t, t, y): a U-Net of residual blocks with attention on some of its levels.

    With its defaults it has 14,419,651 parameters for 3x32x32 images of ten classes: the sizes of
    Fedssyn's released code, whose time step and class give every block's second norm a scale and a
    shift, and whose resampling layers are residual blocks. For the 8x8 digits, ``width=16,
    multipliers=(1, 2, 2), blocks=1`` has 361,873.

    A level halves the sides, rounded up: 28 goes to 14, 7 and 4. On the way up a side is doubled and
    the row or column too many is cut off (4 to 8 to 7), so any image fits.

    The initial weights come from ``generator`` alone. The layers are laid out on "meta", which draws
    nothing, and filled afterwards: seeding the process-wide generator for the time of the construction
    would change the numbers of other draws from it in another thread.

    Parameters
    ----------
    generator : torch.Generator, optional
        The source of the initial weights; its device is the network's. Without one it stays laid out on "meta", which
        shows whether it can be built and takes no memory.
    width : int
        Channels of the first level; even.
    multipliers : tuple of int
        Channels of each level, as multiples of ``width``.
    blocks : int
        Residual blocks of each level on the way down; one more on the way up.
    attention : tuple of int
        Levels with attention after every block, 0 for that of the full size. The middle always has it.
    dropout : float
        The share of values dropped in each residual block, where `forward` is given a generator.

    Raises
    ------
    ValueError
        No such network can be built; the message names those that can.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        generator: torch.Generator | None,
        *,
        width: int = 64,
        multipliers: tuple[int, ...] = (1, 2, 2, 2),
        blocks: int = 3,
        attention: tuple[int, ...] = (0, 1, 2),
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        _check(shape, width, multipliers, blocks, attention)
        self.width = width
        conditions = 4 * width
        with torch.device("meta"):
            self.time = nn.Sequential(
                nn.Linear(width, conditions), nn.SiLU(), nn.Linear(conditions, conditions)
            )
            # Laid out by itself, an embedding draws on "meta", which imports seconds of symbolic algebra.
            table = torch.empty(classes, conditions)
            self.label = nn.Embedding(classes, conditions, _weight=table)
            wide = width * multipliers[0]
            self.first = nn.Conv2d(shape[0], wide, 3, padding=1)
            self.down, self.middle, self.up = _stages(
                width, multipliers, blocks, attention, dropout
            )
            self.norm = norm(wide)
            self.last = nn.Conv2d(wide, shape[0], 3, padding=1)
        if generator is not None:
            fill(self, generator)
            self._silence_branches()

    @torch.no_grad()
    def _silence_branches(self) -> None:
        """Make the last layer of every residual branch, and of the network, 0: it starts by predicting 0."""
        for module in self.modules():
            for name in ("conv2", "project", "last"):
                if isinstance(last := getattr(module, name, None), nn.Conv2d | nn.Linear):
                    for parameter in last.parameters():
                        parameter.zero_()

    def forward(
        self, x: Tensor, t: Tensor, y: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the noise predicted in ``x``.

        Parameters
        ----------
        x : Tensor
            Noised images x_t, float [n, C, H, W].
        t : Tensor
            Their time steps, int64 [n].
        y : Tensor
            Their classes, int64 [n].
        generator : torch.Generator, optional
            The source of the dropout. Without it nothing is dropped, in any mode of the module:
            torch's own dropout draws from the process-wide generator.

        Returns
        -------
        Tensor
            Float [n, C, H, W].
        """
        # Every block takes SiLU of the conditions first, so it is taken once.
        time = sinusoids(t, self.width).to(self.label.weight.dtype)
        conditions = F.silu(self.time(time) + self.label(y))
        h = self.first(x)
        skips = [h]
        for layer in self.down:
            h = layer(h, conditions, generator)
            skips.append(h)
        h = self.middle(h, conditions, generator)
        for layer in self.up:
            skip = skips.pop()
            h = torch.cat((h[..., : skip.shape[-2], : skip.shape[-1]], skip), 1)
            h = layer(h, conditions, generator)
        eps: Tensor = self.last(F.silu(self.norm(h)))
        return eps


def _stages(
    width: int,
    multipliers: tuple[int, ...],
    blocks: int,
    attention: tuple[int, ...],
    dropout: float,
) -> tuple[nn.ModuleList, Stage, nn.ModuleList]:
    """Return the way down, the middle and the way up, in the order of the forward pass.

    On the way down are ``blocks`` a level, and one that halves between two levels; on the way up a stage for every
    output kept on the way down, from last to first.
    """
    widths = [width * m for m in multipliers]
    channels, skips = widths[0], [widths[0]]
    down, up = list[Stage](), list[Stage]()

    def block(given: int, out: int, resample: str = "") -> ResidualBlock:
        return ResidualBlock(given, out, 4 * width, dropout, resample)

    def attends(level: int, out: int) -> Attention | None:
        return Attention(out) if level in attention else None

    for level, out in enumerate(widths):
        if level:
            down.append(Stage(block(channels, channels, "down")))
            skips.append(channels)
        for _ in range(blocks):
            down.append(Stage(block(channels, out), attends(level, out)))
            channels = out
            skips.append(out)
    middle = Stage(block(channels, channels), Attention(channels), block(channels, channels))
    for level, out in reversed(list(enumerate(widths))):
        for left in reversed(range(blocks + 1)):
            doubles = block(out, out, "up") if level and not left else None
            up.append(Stage(block(channels + skips.pop(), out), attends(level, out), doubles))
            channels = out
    return nn.ModuleList(down), middle, nn.ModuleList(up)


def sinusoids(t: Tensor, size: int) -> Tensor:
    """Return cos(w_i t) and sin(w_i t) side by side, float32 [n, size] (Ho et al. 2020, section 4).

    The frequencies w_i = 10000^(-2i/size) fall from 1 for i = 0 to size/2 - 1; ``size`` is even.
    """
    half = size // 2
    steps = torch.arange(half, device=t.device, dtype=torch.float32)
    angles = t[:, None] * torch.exp(-math.log(_LONGEST_PERIOD) / half * steps)
    return torch.cat((angles.cos(), angles.sin()), 1)


def _check(
    shape: tuple[int, int, int],
    width: int,
    multipliers: tuple[int, ...],
    blocks: int,
    attention: tuple[int, ...],
) -> None:
    """Refuse sizes of which no network can be built, saying which can."""
    if width < 2 or width % 2 or blocks < 1 or not multipliers or min(multipliers) < 1:
        raise ValueError(
            f"a U-Net needs an even width of at least 2, blocks and multipliers of at least 1, "
            f"not width {width}, {blocks} blocks and multipliers {multipliers}"
        )
    levels = min(shape[1:]).bit_length()
    if len(multipliers) > levels:
        raise ValueError(
            f"a U-Net of {len(multipliers)} levels cannot be built for images of {shape[1]}x{shape[2]}: "
            f"every level but the first halves the sides, so there can be {levels}"
        )
    if not set(attention) <= set(range(len(multipliers))):
        raise ValueError(f"attention on levels {attention}: there are 0 to {len(multipliers) - 1}")
    odd = [c for c in (width * m for m in multipliers) if c > HEAD and c % (c // HEAD)]
    if odd:
        raise ValueError(f"{odd[0]} channels cannot be cut into {odd[0] // HEAD} equal heads")


# ---- unet blocks ---------------------------------------------------------------------------------
# What a U-Net is made of: residual blocks under conditions, attention, and stages of both.

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

    Drawn with the channels last and then turned, so that one seed keeps the same values however ``h`` is in
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
