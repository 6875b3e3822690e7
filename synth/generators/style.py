"""A small class-conditional generator by style: StyleGAN2 (Karras et al. 2020) at the size of small images.

A mapping network makes a style w of a code z and a class; synthesis layers, whose convolutions w modulates, make an
image of a learned constant. As in StyleGAN-XL, which FedDGM uses, one chain of feature maps leads to the image, with no
image at a lower resolution added to it: what follows a layer depends on that layer's features and on styles alone. No
layer adds noise, so latents give the same image every time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from synth.generators.equalised import Convolution, Dense, activated, begin

_LEAST_SIDE = 4
_MAPPING_LAYERS = 2


@dataclass(frozen=True)
class Form:
    """The size of a style-based generator.

    Attributes
    ----------
    shape : tuple of int
        An image's (C, H, W). The synthesis begins at these sides halved as long as both stay whole and 4 or more: 4x4
        for images of 8x8, 16x16 and 32x32, 7x7 for those of 28x28.
    width : int
        Channels of every feature map.
    depth : int
        Synthesis layers at each resolution.
    latent : int
        The length of z, of w and of a class's embedding.

    Raises
    ------
    ValueError
        Something of it is less than 1, or a side less than 4.
    """

    shape: tuple[int, int, int]
    classes: int
    width: int = 32
    depth: int = 3
    latent: int = 32

    def __post_init__(self) -> None:
        """Refuse sizes that no generator has."""
        if min(*self.shape, self.classes, self.width, self.depth, self.latent) < 1:
            raise ValueError(f"every size of a generator must be at least 1: {self}")
        if min(self.shape[1:]) < _LEAST_SIDE:
            raise ValueError(
                f"the sides of generated images must be {_LEAST_SIDE} or more, not {self.shape[1:]}"
            )

    @property
    def resolutions(self) -> tuple[tuple[int, int], ...]:
        """The (H, W) of the feature maps, from the constant's to the image's."""
        found = [self.shape[1:]]
        while all(side % 2 == 0 and side // 2 >= _LEAST_SIDE for side in found[0]):
            found.insert(0, (found[0][0] // 2, found[0][1] // 2))
        return tuple(found)

    @property
    def layers(self) -> int:
        """L, the number of synthesis layers."""
        return self.depth * len(self.resolutions)


class StyleNetwork(nn.Module):
    """G(z, c): mapping, L synthesis layers, and a 1x1 convolution to the image; 66,881 weights for the 8x8 digits.

    Its tensors are laid out, not drawn: `start` gives them initial weights, `style_weights.decoded` trained ones.
    """

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form = form
        self.mapping = Mapping(form.classes, form.latent)
        self.constant = nn.Parameter(torch.empty(form.width, *form.resolutions[0]))
        self.layers = nn.ModuleList(
            SynthesisLayer(form.width, form.latent, doubles=n > 0 and n % form.depth == 0)
            for n in range(form.layers)
        )
        self.to_image = ToImage(form.width, form.latent, form.shape[0])

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Return the images of codes z [n, latent] and classes, int64 [n]: float [n, C, H, W]."""
        return self.synthesis(*self.features(self.styles(z, labels), 0))

    def styles(self, z: Tensor, labels: Tensor) -> Tensor:
        """Return w for each of the L layers and the last convolution, all equal: float [n, L + 1, latent]."""
        w: Tensor = self.mapping(z, labels)
        return w[:, None].repeat(1, self.form.layers + 1, 1)

    def features(self, styles: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Return f after the first ``n`` layers, float [m, width, H', W'], and the styles of what follows it.

        Parameters
        ----------
        styles : Tensor
            Float [m, L + 1, latent].
        n : int
            From 0, where f is the constant, to L.
        """
        f = self.constant.expand(len(styles), *self.constant.shape)
        return self._through(f, styles, 0, n), styles[:, n:]

    def synthesis(self, f: Tensor, styles: Tensor) -> Tensor:
        """Return the images, float [m, C, H, W], of what `features` returns, whichever its ``n`` was.

        Parameters
        ----------
        f : Tensor
            Float [m, width, H', W'], the features after layer n.
        styles : Tensor
            Float [m, L - n + 1, latent], whose number says what n is.
        """
        n = self.form.layers + 1 - styles.shape[1]
        images: Tensor = self.to_image(self._through(f, styles, n, self.form.layers), styles[:, -1])
        return images

    def _through(self, f: Tensor, styles: Tensor, first: int, last: int) -> Tensor:
        """Return the features after layers ``first`` to ``last`` - 1, whose styles lead ``styles``."""
        for layer, w in zip(self.layers[first:last], styles.unbind(1), strict=False):
            f = layer(f, w)
        return f


class Mapping(nn.Module):
    """w(z, c): z beside the class's embedding, through dense layers."""

    def __init__(self, classes: int, latent: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(classes, latent))
        self.layers = nn.ModuleList(
            Dense(latent if i else 2 * latent, latent) for i in range(_MAPPING_LAYERS)
        )

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Return w, float [n, latent]."""
        h = torch.cat((z, self.embedding[labels]), 1)
        for layer in self.layers:
            h = activated(layer(h))
        return h


class SynthesisLayer(nn.Module):
    """A modulated, demodulated 3x3 convolution, after a doubling of the sides where ``doubles``."""

    def __init__(self, width: int, latent: int, doubles: bool) -> None:
        super().__init__()
        self.doubles = doubles
        self.style = Dense(latent, width)
        self.convolution = Convolution(width, width)

    def forward(self, f: Tensor, w: Tensor) -> Tensor:
        """Return the layer's features."""
        if self.doubles:
            # The nearest pixel and no mean of several: its gradient is the same in every run on a GPU, too.
            f = F.interpolate(f, scale_factor=2.0)
        bias = self.convolution.bias[:, None, None]
        return activated(modulated(f, self.convolution.weight, 1 + self.style(w)) + bias)


class ToImage(nn.Module):
    """A modulated 1x1 convolution without demodulation, so that w decides the image's contrast."""

    def __init__(self, width: int, latent: int, channels: int) -> None:
        super().__init__()
        self.style = Dense(latent, width)
        self.convolution = Convolution(width, channels, kernel=1)

    def forward(self, f: Tensor, w: Tensor) -> Tensor:
        """Return the images."""
        images: Tensor = self.convolution(f * (1 + self.style(w))[:, :, None, None])
        return images


def modulated(f: Tensor, weight: Tensor, style: Tensor) -> Tensor:
    """Return StyleGAN2's modulated convolution, one call for all samples (its equations 1 to 3).

    The kernel of a sample is w'_ijk = s_i w_ijk, divided by the root of the sum of w'_ijk^2 over i and k. To scale the
    kernel's input channels is to scale the features, and to divide its output channels to divide the output; so all
    samples share one kernel, and are one ordinary convolution.

    Parameters
    ----------
    f : Tensor
        Float [n, I, H, W].
    weight : Tensor
        Float [O, I, K, K], K odd.
    style : Tensor
        s, float [n, I].

    Returns
    -------
    Tensor
        Float [n, O, H, W].
    """
    squares = style.square() @ weight.square().sum((2, 3)).T
    out = F.conv2d(f * style[:, :, None, None], weight, padding=weight.shape[-1] // 2)
    return out * torch.rsqrt(squares + 1e-8)[:, :, None, None]


def start(form: Form, generator: torch.Generator) -> StyleNetwork:
    """Return a network on the generator's device with initial weights from it alone."""
    with torch.device(generator.device):
        network = StyleNetwork(form)
    begin(network, generator)
    return network
