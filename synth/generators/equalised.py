"""Layers with an equalised learning rate (Karras et al. 2018), of which the style-based generator is made.

Weights begin standard normal and are divided by sqrt(fan in) at every call, not once at the start. So Adam, whose steps
know nothing of a weight's size, changes all layers at the same pace.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_SLOPE = 0.2


@torch.no_grad()
def begin(network: nn.Module, generator: torch.Generator) -> None:
    """Give a network of such layers its initial weights: biases are 0, all else is drawn from N(0, 1)."""
    for parameter in network.parameters():
        if parameter.ndim == 1:
            parameter.zero_()
        else:
            parameter.normal_(generator=generator)


def activated(x: Tensor) -> Tensor:
    """Return leaky ReLU of ``x``, times sqrt 2, which about keeps the mean square."""
    return F.leaky_relu(x, _SLOPE) * math.sqrt(2)


class Dense(nn.Module):
    """x W^T / sqrt(fan in) + b: float [n, inputs] -> [n, outputs]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        return F.linear(x, self.weight * self.weight.shape[1] ** -0.5, self.bias)


class Convolution(nn.Module):
    """A convolution that keeps the sides: float [n, channels, H, W] -> [n, outputs, H, W].

    Parameters
    ----------
    kernel : int
        The side of the kernel; odd.
    """

    def __init__(self, channels: int, outputs: int, kernel: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, channels, kernel, kernel))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        scaled = self.weight * self.weight[0].numel() ** -0.5
        return F.conv2d(x, scaled, self.bias, padding=self.weight.shape[-1] // 2)
