"""No generator: the latent is the image itself, as in trajectory matching without a prior (FedDGM's ablation)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from synth.generators.latents import Latents


@dataclass(frozen=True)
class Pixels:
    """G(Z) = Z, from standard normal noise that says nothing of the class.

    Attributes
    ----------
    shape : tuple of int
        An image's (C, H, W).
    """

    shape: tuple[int, int, int]
    rate: float = 1.0

    def latents(self, labels: Tensor, generator: torch.Generator) -> Latents:
        """Return noise of an image for each of ``labels``, float [n, C, H, W]."""
        noise = torch.randn(len(labels), *self.shape, generator=generator, device=labels.device)
        return Latents((noise,), (self.rate,))

    def images(self, latents: Latents) -> Tensor:
        """Return the latents themselves."""
        (images,) = latents.tensors
        return images
