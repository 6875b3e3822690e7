"""Networks that begin with draws from a generator alone: torch's own start draws from the process-wide one."""

from __future__ import annotations

import math

import torch
from torch import nn


@torch.no_grad()
def allocate(model: nn.Module, device: torch.device) -> None:
    """Give a network on "meta" memory on ``device``, whose values are still to be written."""
    # As Module.to_empty, whose empty_like is slow to import for a tensor on "meta".
    empty = {
        name: torch.empty(value.shape, dtype=value.dtype, device=device)
        for name, value in model.state_dict().items()
    }
    model.load_state_dict(empty, assign=True)


@torch.no_grad()
def fill_uniform(
    layer: nn.Linear | nn.Conv2d | nn.ConvTranspose2d, generator: torch.Generator
) -> None:
    """Draw weights and biases uniform in +-1/sqrt(fan in), which is torch's usual start.

    Fan in is as torch counts it: of a transposed convolution, by its output channels.
    """
    bound = 1 / math.sqrt(layer.weight[0].numel())
    for parameter in layer.parameters():
        parameter.uniform_(-bound, bound, generator=generator)
