"""What FedDGM requires of a generator: initial latents, and the images that they generate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from synth.generators.style import StyleNetwork


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


# ---- feature space -------------------------------------------------------------------------------
# FedDGM's spaces F_n: what of a style-based generator is optimised.


@dataclass(frozen=True, eq=False)
class FeatureSpace:
    """F_n: the features f after synthesis layer n and the styles w of all that follows; of F_0, the styles alone.

    Small n keeps images to what the generator knows; large n lets them become anything. As in FedDGM's released code
    each layer has its own w (StyleGAN's space W+), and z is drawn once, at the start.

    Attributes
    ----------
    network : StyleNetwork
        The generator; its parameters should ask for no gradients, or those are computed for nothing.
    n : int
        From 0 to the number of the network's layers.
    rate_w, rate_f : float
        By what the learning rate is multiplied for w and for f: the released code's 1 and 1000.

    Raises
    ------
    ValueError
        The network has no layer n.
    """

    network: StyleNetwork
    n: int
    rate_w: float = 1.0
    rate_f: float = 1000.0

    def __post_init__(self) -> None:
        """Refuse a space that is not there."""
        layers = self.network.form.layers
        if not 0 <= self.n <= layers:
            raise ValueError(f"this generator has the spaces F_0 to F_{layers}, and no F_{self.n}")

    @torch.no_grad()
    def latents(self, labels: Tensor, generator: torch.Generator) -> Latents:
        """Return the latents of codes z ~ N(0, I), which give the same images in every space.

        Returns
        -------
        Latents
            w, float [m, L - n + 1, latent] of m images; before it, in F_1 and on, f, float [m, width, H', W'].
        """
        z = torch.randn(
            len(labels), self.network.form.latent, generator=generator, device=labels.device
        )
        f, w = self.network.features(self.network.styles(z, labels), self.n)
        return (
            Latents((f, w), (self.rate_f, self.rate_w)) if self.n else Latents((w,), (self.rate_w,))
        )

    def images(self, latents: Latents) -> Tensor:
        """Return the network's images, float [n, C, H, W]."""
        if self.n:
            return self.network.synthesis(*latents.tensors)
        return self.network.synthesis(*self.network.features(latents.tensors[0], 0))


# ---- pixels --------------------------------------------------------------------------------------
# No generator: the latent is the image itself, as in trajectory matching without a prior (FedDGM's ablation).


@dataclass(frozen=True)
class PixelGenerator:
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
