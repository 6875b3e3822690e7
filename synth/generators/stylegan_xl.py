"""StyleGAN-XL (Sauer et al. 2022) as FedDGM's generator: the official network, driven a layer at a time.

The network is somebody else's module and comes ready from outside; nothing here opens a file. What is used of it is the
interface of its official code: ``z_dim``, ``c_dim``, ``mapping(z, c)``, and of its ``synthesis`` ``input``,
``layer_names``, the layers of these names, and ``output_scale``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from synth.generators.latents import Latents


@dataclass(frozen=True, eq=False)
class StyleganXL:
    """F_n of StyleGAN-XL: the features f behind its layer n and the styles w of all layers that follow.

    As in FedDGM's released code every layer has a w of its own (the space W+), and f of F_0 are the Fourier features
    that the synthesis begins with. Other than there f is not cut to [-10, 10], which half precision asks for: layers
    compute in float32, so that latents that nobody has moved give the network's own images.

    Attributes
    ----------
    network : torch.nn.Module
        The official ``G_ema``, in eval mode; its parameters should ask for no gradients.
    n : int
        From 0 to one less than the number of its layers; the last one makes the image.
    classes : tuple of int
        For each label, which of the network's classes it is.
    rate_w, rate_f : float
        By what the learning rate is multiplied for w and for f: the released code's 1 and 1000.
    chunk : int
        Images of which latents are drawn at a time, which bounds the memory; 0 for all.

    Raises
    ------
    ValueError
        The network knows no classes, or not these, or has no layer n.
    """

    network: Any
    n: int
    classes: tuple[int, ...]
    rate_w: float = 1.0
    rate_f: float = 1000.0
    chunk: int = 0

    def __post_init__(self) -> None:
        """Refuse a space and classes that are not there."""
        last, known = len(self.network.synthesis.layer_names) - 1, self.network.c_dim
        if not 0 <= self.n <= last:
            raise ValueError(f"this generator has the spaces F_0 to F_{last}, and no F_{self.n}")
        if not known:
            raise ValueError("this generator knows no classes, and one image of each is asked for")
        if not all(0 <= found < known for found in self.classes):
            raise ValueError(f"this generator has classes from 0 to {known - 1}")

    @torch.no_grad()
    def latents(self, labels: Tensor, generator: torch.Generator) -> Latents:
        """Return the latents of codes z ~ N(0, I), which give the same images in every space.

        Returns
        -------
        Latents
            f, float32 [m, width, H', W'] of m images, and w, [m, L - n, w_dim] for L layers.
        """
        z = torch.randn(len(labels), self.network.z_dim, generator=generator, device=labels.device)
        own = torch.tensor(self.classes, device=labels.device)[labels]
        c = F.one_hot(own, self.network.c_dim).to(z.dtype)
        size = self.chunk or max(1, len(labels))
        rows = zip(torch.split(z, size), torch.split(c, size), strict=True)
        parts = [self._features(*row) for row in rows]
        f, w = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return Latents((f, w), (self.rate_f, self.rate_w))

    def images(self, latents: Latents) -> Tensor:
        """Return the network's images, float32 [m, C, H, W]."""
        f, w = latents.tensors
        synthesis = self.network.synthesis
        images: Tensor = self._through(f, w, synthesis.layer_names[self.n :])
        return images * float(synthesis.output_scale)

    def _features(self, z: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Return f and w of codes z and one-hot classes c."""
        styles: Tensor = self.network.mapping(z, c)
        names = self.network.synthesis.layer_names[: self.n]
        f = self._through(self.network.synthesis.input(styles[:, 0]), styles[:, 1:], names)
        return f, styles[:, 1 + self.n :]

    def _through(self, f: Tensor, styles: Tensor, names: list[str]) -> Tensor:
        """Return the features after the layers of these names, whose styles lead ``styles``."""
        for name, w in zip(names, styles.unbind(1), strict=False):
            layer = getattr(self.network.synthesis, name)
            f = layer(f, w, noise_mode="const", force_fp32=True)
        return f
