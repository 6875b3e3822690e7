"""The training of a style-based generator as a class-conditional VAE's decoder, on images that may be shown to all.

StyleGAN itself is trained against a discriminator. At 8x8, and with minutes of one core to train in, that gave one
image a class, for any z. The likelihood's bound has no such end; what it costs is some sharpness, which the
optimisation of the latents can put back.
"""

from __future__ import annotations

import base64
import json
import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from synth.beta_vae import kl_to_prior, sampled
from synth.descent import Adam
from synth.generators.style import Dense, Form, StyleNetwork, activated

_UNITS = 256


@dataclass(frozen=True)
class Plan:
    """How a generator is trained.

    Attributes
    ----------
    steps, batch : int
        How many steps there are, and images of each.
    lr : float
        Adam's learning rate; over the last half of the steps it falls linearly to 0.
    deviation : float
        sigma of the Gaussian likelihood of every value, in [-1, 1]: with a small one images are sharper, and codes
        drawn from N(0, I) less like those of real images.
    """

    steps: int = 2500
    batch: int = 128
    lr: float = 5e-3
    deviation: float = 0.2


class Encoder(nn.Module):
    """q(z | x, c): an image's values and its class's embedding through three dense layers."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(form.classes, form.latent))
        self.layers = nn.ModuleList(
            [Dense(math.prod(form.shape) + form.latent, _UNITS), Dense(_UNITS, _UNITS)]
        )
        self.last = Dense(_UNITS, 2 * form.latent)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return mu and log sigma_z^2: [n, C, H, W] and int64 [n] -> twice [n, latent]."""
        h = torch.cat((x.flatten(1), self.embedding[labels]), 1)
        for layer in self.layers:
            h = activated(layer(h))
        mu, log_variance = self.last(h).chunk(2, 1)
        return mu, log_variance


def negative_bound(
    images: Tensor, x: Tensor, mu: Tensor, log_variance: Tensor, deviation: float
) -> Tensor:
    """Return ||x - G(z)||^2 / (2 sigma^2) + KL(q(z | x, c) || N(0, I)), the mean over examples.

    It bounds -log p(x | c) from above, up to the normal density's constant.

    Parameters
    ----------
    images, x : Tensor
        The generator's and the real ones, float [n, C, H, W].
    mu, log_variance : Tensor
        Float [n, latent].
    deviation : float
        sigma.
    """
    squared = (images - x).square().flatten(1).sum(1)
    return (squared / (2 * deviation**2) + kl_to_prior(mu, log_variance)).mean()


def train_prior(
    images: Tensor, labels: Tensor, form: Form, generator: torch.Generator, plan: Plan | None = None
) -> StyleNetwork:
    """Train a generator on images that are no client's.

    Parameters
    ----------
    images : Tensor
        Float [N, C, H, W] in [-1, 1].
    labels : Tensor
        Int64 [N].
    generator : torch.Generator
        The source of every draw, on the images' device: the two networks' initial weights, then of each step the batch
        and the noise of its codes.

    Returns
    -------
    StyleNetwork
        Its parameters ask for no gradients.

    Raises
    ------
    ValueError
        There are no images, their shape is not that of the form, or their number is not that of the labels.
    FloatingPointError
        The loss left the finite numbers.
    """
    if not len(images) or len(images) != len(labels) or images.shape[1:] != form.shape:
        raise ValueError(
            f"images of shape {tuple(images.shape)} with {len(labels)} labels cannot train a generator of {form.shape}"
        )
    plan, device = plan or Plan(), images.device
    decoder, encoder = start(form, generator), Encoder(form).to(device)
    begin(encoder, generator)
    adam = Adam([*decoder.parameters(), *encoder.parameters()], plan.lr, fused=True)
    loss = torch.zeros((), device=device)
    for step in range(plan.steps):
        at = torch.randint(len(images), (plan.batch,), generator=generator, device=device)
        x, y = images[at], labels[at]
        mu, log_variance = encoder(x, y)
        noise = torch.randn(mu.shape, generator=generator, device=device)
        drawn = decoder(sampled(mu, log_variance, noise), y)
        loss = negative_bound(drawn, x, mu, log_variance, plan.deviation)
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.lr = plan.lr * min(1.0, 2 * (1 - step / plan.steps))
        adam.step()
    if not math.isfinite(float(loss.detach())):
        raise FloatingPointError(
            "the generator's training left the finite numbers: lower its learning rate"
        )
    return decoder.requires_grad_(False)


def start(form: Form, generator: torch.Generator) -> StyleNetwork:
    """Return a network on the generator's device with initial weights from it alone."""
    with torch.device(generator.device):
        network = StyleNetwork(form)
    begin(network, generator)
    return network


@torch.no_grad()
def begin(network: nn.Module, generator: torch.Generator) -> None:
    """Give a network of such layers its initial weights: biases are 0, all else is drawn from N(0, 1)."""
    for parameter in network.parameters():
        if parameter.ndim == 1:
            parameter.zero_()
        else:
            parameter.normal_(generator=generator)


def encoded(network: StyleNetwork, about: str) -> bytes:
    """Return a network as JSON: its form, and its weights in float16, little-endian, one after another, in base64.

    Parameters
    ----------
    about : str
        Where the weights come from, for a reader of the file.

    Raises
    ------
    ValueError
        A weight is not finite in float16.
    """
    flat = torch.cat([tensor.flatten() for tensor in network.state_dict().values()])
    half = flat.to("cpu", torch.float16)
    if not bool(half.isfinite().all()):
        raise ValueError("a generator with a weight that is not finite in float16 cannot be kept")
    weights = base64.b64encode(bytes(half.view(torch.uint8).tolist())).decode()
    record = {"about": about, "form": asdict(network.form), "weights": weights}
    return (json.dumps(record, indent=1) + "\n").encode()
