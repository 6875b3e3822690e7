"""A small class-conditional generator by style: StyleGAN2 (Karras et al. 2020) at the size of small images.

A mapping network makes a style w of a code z and a class; synthesis layers, whose convolutions w modulates, make an
image of a learned constant. As in StyleGAN-XL, which FedDGM uses, one chain of feature maps leads to the image, with no
image at a lower resolution added to it: what follows a layer depends on that layer's features and on styles alone. No
layer adds noise, so latents give the same image every time.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEAST_SIDE = 4
_MAPPING_LAYERS = 2


@dataclass(frozen=True)
class Form:
    """The size of a style-based generator.

    Attributes
    ----------
    shape : tuple of int
        An image's (C, H, W). The synthesis starts at these sides, halved while both stay integers and 4 or more: 4x4
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

    Its tensors are laid out, not drawn: `decoded` gives them trained weights, examples/style_training.py initial ones.
    """

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form = form
        self.mapping = MappingNetwork(form.classes, form.latent)
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
            Float [m, L - n + 1, latent], whose number gives n.
        """
        n = self.form.layers + 1 - styles.shape[1]
        images: Tensor = self.to_image(self._through(f, styles, n, self.form.layers), styles[:, -1])
        return images

    def _through(self, f: Tensor, styles: Tensor, first: int, last: int) -> Tensor:
        """Return the features after layers ``first`` to ``last`` - 1, which use the first of ``styles``."""
        for layer, w in zip(self.layers[first:last], styles.unbind(1), strict=False):
            f = layer(f, w)
        return f


class MappingNetwork(nn.Module):
    """w(z, c): z concatenated with the class's embedding, through dense layers."""

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


# ---- equalised -----------------------------------------------------------------------------------
# Layers with an equalised learning rate (Karras et al. 2018), of which the style-based generator is made.
#
# Weights begin standard normal and are divided by sqrt(fan in) at every call, not once at the start. So Adam, whose
# steps know nothing of a weight's size, changes all layers at the same pace.

_SLOPE = 0.2


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


# ---- style weights -------------------------------------------------------------------------------
# Trained weights of a style-based generator as text, and those for handwritten digits that come with the app.

# It is in the code, not next to the weights, so that a run's fingerprint distinguishes two priors.
_DIGITS_SHA256 = "ffa78611d359a20f9765c9595791e16a57a32584dd25d47a10991b26253429bc"


def decoded(content: bytes, sha256: str) -> StyleNetwork:
    """Return the network of a file's bytes, on the CPU, in float32, asking for no gradients.

    Parameters
    ----------
    content : bytes
        JSON: the network's form, and its weights in float16, little-endian, one after another, in base64, as
        examples/train_prior.py writes them.
    sha256 : str
        Of the content, in hexadecimal.

    Raises
    ------
    ValueError
        It is another content, or not a network's, or has a weight that is not finite.
    """
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(
            f"the generator's weights are damaged or others: their SHA-256 does not begin with {sha256[:16]}"
        )
    try:
        record = json.loads(content)
        form = Form(**{**record["form"], "shape": tuple(record["form"]["shape"])})
        raw = base64.b64decode(record["weights"], validate=True)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"these are not a generator's weights: {error!r}") from error
    with torch.device("meta"):  # a form takes memory only once there are weights for it
        network = StyleNetwork(form)
    network.load_state_dict(_tensors(network.state_dict(), raw), assign=True)
    return network.requires_grad_(False)


def _tensors(shapes: Mapping[str, Tensor], raw: bytes) -> dict[str, Tensor]:
    """Return ``raw`` cut into tensors with the names and shapes of ``shapes``, in that order."""
    sizes = [math.prod(tensor.shape) for tensor in shapes.values()]
    if len(raw) != 2 * sum(sizes):
        raise ValueError(
            f"the generator's weights are {len(raw)} bytes where its form has {2 * sum(sizes)}"
        )
    flat = torch.frombuffer(bytearray(raw), dtype=torch.float16).float()
    if not bool(flat.isfinite().all()):
        raise ValueError("a weight of the generator is not finite")
    return {
        name: values.reshape(tensor.shape)
        for (name, tensor), values in zip(shapes.items(), torch.split(flat, sizes), strict=True)
    }


def digits_prior() -> StyleNetwork:
    """Return the generator of 8x8 digits that comes with the app, by default for scikit-learn's digits.

    It has learned from MNIST at 8x8, other people's digits than those: `examples/train_prior.py` trains it.

    Raises
    ------
    ValueError
        The app's file is damaged.
    """
    content = files("synth.generators").joinpath("digits_prior.json").read_bytes()
    return decoded(content, _DIGITS_SHA256)
