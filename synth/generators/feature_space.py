"""FedDGM's spaces F_n: what of a style-based generator is optimised."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from synth.generators.latents import Latents
from synth.generators.style import StyleNetwork


@dataclass(frozen=True, eq=False)
class FeatureSpace:
    """F_n: the features f after synthesis layer n and the styles w of all that follows; of F_0, the styles alone.

    Small n keeps images to what the generator knows; large n lets them become anything. As in FedDGM's released code
    each layer has a w of its own (StyleGAN's space W+), and z is drawn once, to begin with.

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
