"""ConvNet, the network of the dataset-distillation papers: equal blocks, then one linear layer."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from common.models.classifier import Classifier

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
    32x32, as the papers' code does.

    Parameters
    ----------
    depth
        The number of blocks; each halves the image's sides.
    norm
        "instance" (affine), "group" (4 groups), "batch" or "none".

    Raises
    ------
    ValueError
        The depth, width or norm is impossible for such images; the message names what
        is possible.
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
        _check(shape, sides, depth, width, norm)
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

    def embed(self, x: Tensor) -> Tensor:
        """Return the last block's output, flattened: [n, width * (H / 2^depth) * (W / 2^depth)]."""
        features: Tensor = self.features(x)
        return features.flatten(1)


def _check(
    shape: tuple[int, int, int], sides: tuple[int, int], depth: int, width: int, norm: str
) -> None:
    """Refuse a ConvNet that cannot be built for these images, saying what can."""
    largest = min(sides).bit_length() - 1
    size = f"{shape[1]}x{shape[2]}"
    if not 1 <= depth <= largest:
        raise ValueError(
            f"a ConvNet of depth {depth} cannot be built for images of {size}: "
            f"every block halves the image, so depth goes from 1 to {largest} there (model.depth)"
        )
    if norm not in _NORMS:
        raise ValueError(f"unknown norm {norm!r}: choose one of {', '.join(_NORMS)} (model.norm)")
    if width < 1:
        raise ValueError(f"a ConvNet's width must be at least 1, not {width} (model.width)")
    if norm == "group" and width % GROUPS:
        raise ValueError(
            f"group norm needs a width divisible by {GROUPS}, not {width} (model.width)"
        )
