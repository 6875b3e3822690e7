"""The U-Net that predicts the noise in an image, given the time step and the class (Fedssyn's DDPM).

It is the network of Dhariwal and Nichol 2021 at the size of Fedssyn's released code: residual blocks
that the time step and the class scale and shift, resampling inside of residual blocks, and attention.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from synth.initial import allocate, fill_uniform
from synth.unet_blocks import HEAD, Attention, ResidualBlock, Stage, norm

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
    would change the numbers of whatever else draws from it in another thread.

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
        No such network can be built; the message says what can.
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
        _check(shape, classes, width, multipliers, blocks, attention, dropout)
        self.width = width
        conditions = 4 * width
        with torch.device("meta"):
            self.time = nn.Sequential(
                nn.Linear(width, conditions), nn.SiLU(), nn.Linear(conditions, conditions)
            )
            # Laid out by itself, an embedding draws on "meta", which imports seconds of symbolic algebra.
            table = torch.empty(classes, conditions)
            self.label = nn.Embedding(classes, conditions, _weight=table)
            layout = _Layout(width, multipliers, blocks, attention, conditions, dropout)
            self.first = nn.Conv2d(shape[0], layout.channels, 3, padding=1)
            self.down = layout.down()
            self.middle = layout.middle()
            self.up = layout.up()
            self.norm = norm(layout.channels)
            self.last = nn.Conv2d(layout.channels, shape[0], 3, padding=1)
        if generator is not None:
            _fill(self, generator)

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
            The source of the dropout. Without it nothing is dropped, whatever the module's mode:
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


class _Layout:
    """Lays out the three parts in the order of the forward pass, keeping count of the channels.

    Asked for `down`, `middle` and `up` in this order; ``channels`` is what the next layer is given.
    """

    def __init__(
        self,
        width: int,
        multipliers: tuple[int, ...],
        blocks: int,
        attention: tuple[int, ...],
        conditions: int,
        dropout: float,
    ) -> None:
        self.widths = [width * m for m in multipliers]
        self.channels = self.widths[0]
        self._skips = [self.channels]
        self._blocks, self._attention = blocks, attention
        self._conditions, self._dropout = conditions, dropout

    def down(self) -> nn.ModuleList:
        """Return the way down: ``blocks`` a level, and one that halves between two levels."""
        stages = []
        for level, out in enumerate(self.widths):
            if level:
                stages.append(Stage(self._block(self.channels, self.channels, "down")))
                self._skips.append(self.channels)
            for _ in range(self._blocks):
                stages.append(Stage(self._block(self.channels, out), self._attends(level, out)))
                self.channels = out
                self._skips.append(out)
        return nn.ModuleList(stages)

    def middle(self) -> Stage:
        """Return the middle: two blocks and attention between them."""
        c = self.channels
        return Stage(self._block(c, c), Attention(c), self._block(c, c))

    def up(self) -> nn.ModuleList:
        """Return the way up: a stage for every output kept on the way down, from last to first."""
        stages = []
        for level, out in reversed(list(enumerate(self.widths))):
            for left in reversed(range(self._blocks + 1)):
                block = self._block(self.channels + self._skips.pop(), out)
                doubles = self._block(out, out, "up") if level and not left else None
                stages.append(Stage(block, self._attends(level, out), doubles))
                self.channels = out
        return nn.ModuleList(stages)

    def _block(self, channels: int, out: int, resample: str = "") -> ResidualBlock:
        return ResidualBlock(channels, out, self._conditions, self._dropout, resample)

    def _attends(self, level: int, channels: int) -> Attention | None:
        return Attention(channels) if level in self._attention else None


def sinusoids(t: Tensor, size: int) -> Tensor:
    """Return cos(w_i t) and sin(w_i t) side by side, float32 [n, size] (Ho et al. 2020, section 4).

    The frequencies w_i = 10000^(-2i/size) fall from 1 for i = 0 to size/2 - 1; ``size`` is even.
    """
    half = size // 2
    steps = torch.arange(half, device=t.device, dtype=torch.float32)
    angles = t[:, None] * torch.exp(-math.log(_LONGEST_PERIOD) / half * steps)
    return torch.cat((angles.cos(), angles.sin()), 1)


@torch.no_grad()
def _fill(model: UNet, generator: torch.Generator) -> None:
    """Give the network memory on the generator's device and torch's usual initial weights from it.

    Convolutions and linear layers are uniform in +-1/sqrt(fan in), embeddings standard normal. The last
    layer of every residual branch and of the network is 0, so it starts by predicting 0.
    """
    allocate(model, generator.device)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            fill_uniform(module, generator)
        elif isinstance(module, nn.Embedding):
            module.weight.normal_(generator=generator)
        elif isinstance(module, nn.GroupNorm):
            module.reset_parameters()
    for module in model.modules():
        for name in ("conv2", "project", "last"):
            if isinstance(last := getattr(module, name, None), nn.Conv2d | nn.Linear):
                for parameter in last.parameters():
                    parameter.zero_()


def _check(
    shape: tuple[int, int, int],
    classes: int,
    width: int,
    multipliers: tuple[int, ...],
    blocks: int,
    attention: tuple[int, ...],
    dropout: float,
) -> None:
    """Refuse sizes of which no network can be built, saying which can."""
    if min(shape) < 1 or classes < 1:
        raise ValueError(f"a U-Net needs pixels and a class, not shape {shape} and {classes}")
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
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout is a share from 0 to less than 1, not {dropout}")
