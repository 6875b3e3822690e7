"""Initial weights from an explicit generator: torch's own start draws from the process-wide one."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@torch.no_grad()
def initialise(model: nn.Module, generator: torch.Generator) -> None:
    """Give every layer of ``model`` the start that its source gives it, drawn from ``generator``.

    Weights and biases of convolutions and linear layers are uniform in +-1/sqrt(fan in), as torch
    counts it (of a transposed convolution by its output channels); norms
    start as the identity. Token vectors are uniform in +-0.1, as in LEAF: torch's normal ones of
    unit variance would make the logits of a tied output huge. A layer that has a method
    ``draw(generator)`` starts by that instead. Layers draw in the order of ``model.modules()``, so
    a seed gives the same weights in every process.

    Parameters
    ----------
    model
        On the generator's device; changed in place.
    generator
        The only source of randomness.

    Raises
    ------
    TypeError
        ``model`` has a layer with parameters whose start is not defined here.
    """
    for module in model.modules():
        if callable(draw := getattr(module, "draw", None)):
            draw(generator)
        elif isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            bound = 1 / math.sqrt(module.weight[0].numel())
            for parameter in module.parameters(recurse=False):
                parameter.uniform_(-bound, bound, generator=generator)
        elif isinstance(module, nn.Embedding):
            module.weight.uniform_(-0.1, 0.1, generator=generator)
        elif isinstance(module, nn.GroupNorm | nn.LayerNorm | _BatchNorm):
            module.reset_parameters()
        elif next(module.parameters(recurse=False), None) is not None:
            raise TypeError(f"no initial weights are defined for a layer {type(module).__name__}")
