"""What FedDGM asks of a generator: latents to begin with, and the images that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Latents:
    """Z, what is optimised instead of a set of images: one tensor or several, each with a rate.

    Attributes
    ----------
    tensors : tuple of Tensor
        Float [n, ...], a row an image.
    rates : tuple of float
        By what the learning rate of Z is multiplied for each tensor.

    Raises
    ------
    ValueError
        There is no tensor, or not a rate for each, or they do not speak of equally many images.
    """

    tensors: tuple[Tensor, ...]
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse what does not belong together."""
        if not self.tensors or len(self.tensors) != len(self.rates):
            raise ValueError(
                f"{len(self.tensors)} latent tensors with {len(self.rates)} rates: give one or more, each with a rate"
            )
        if len({len(tensor) for tensor in self.tensors}) > 1:
            counts = ", ".join(str(len(tensor)) for tensor in self.tensors)
            raise ValueError(f"latent tensors of {counts} rows: each must have a row an image")

    def __len__(self) -> int:
        """Return n, the number of images."""
        return len(self.tensors[0])

    def holding(self, tensors: Sequence[Tensor]) -> Latents:
        """Return latents with the same rates that hold ``tensors``, such as those after a step."""
        return replace(self, tensors=tuple(tensors))

    def leaves(self) -> Latents:
        """Return a copy whose tensors ask for gradients, to be optimised in place."""
        return self.holding([t.detach().clone().requires_grad_() for t in self.tensors])


class ImageGenerator(Protocol):
    """G: any class-conditional generator whose images are differentiable in its latents.

    Images are in [-1, 1], -1 being the raw value 0 and 1 the largest raw value; nothing cuts them to that range, so
    that a latent at its border is still moved by a gradient.
    """

    def latents(self, labels: Tensor, generator: torch.Generator) -> Latents:
        """Draw the latents that the optimisation begins with.

        Parameters
        ----------
        labels : Tensor
            Int64 [n], the class of each image.
        generator : torch.Generator
            The source of every draw, on the device of ``labels``.

        Returns
        -------
        Latents
            Of n images, on the same device, in no autograd graph.
        """
        ...

    def images(self, latents: Latents) -> Tensor:
        """Return G(Z), float [n, C, H, W], through which gradients reach every tensor of the latents."""
        ...
