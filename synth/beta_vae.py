"""The beta-VAE that Fedssyn trains on dSprites in the diffusion model's place (Li et al., 2024, appendix A.4).

The network is that of Burgess et al. (2018), the objective that of Higgins et al. (2017): a Bernoulli likelihood of
every pixel, and beta times the divergence of the code from N(0, I). Fedssyn states neither beta nor the learning
rate: 4 is what Higgins et al. have for dSprites, 5e-4 what Burgess et al. have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from synth.descent import Adam, finite, load_state, state_of
from synth.ensemble_distillation import fill
from synth.latent_sharing import mean_codes

LATENT, BETA, LEARNING_RATE, BATCH = 10, 4.0, 5e-4, 256

_CHANNELS, _UNITS = 32, 256
#: the side of the smallest feature maps, to which the convolutions halve an image
_INNER = 4


class BetaVAE(nn.Module):
    """4x4 convolutions of stride 2 and 32 channels down to 4x4, two layers of 256 units, and the mirror of these.

    ReLU follows every layer but the last of either half. With images of 1x64x64 and 10 latent dimensions it has the
    four convolutions of Burgess et al. and 502,005 parameters.

    Parameters
    ----------
    shape : tuple of int
        An image's (channels, height, width): squares of side 8, 16, 32, 64, ...
    latent : int
        l, the dimensions of a code.

    Raises
    ------
    ValueError
        If such images cannot be halved down to 4x4.
    """

    def __init__(self, shape: tuple[int, int, int], latent: int = LATENT) -> None:
        super().__init__()
        channels, height, width = shape
        halvings = (height // _INNER).bit_length() - 1
        if halvings < 1 or height != width or height != _INNER << halvings:
            raise ValueError(
                f"the beta-VAE takes square images whose side is 8, 16, 32 or another power of 2, not {height}x{width}"
            )
        flat = _CHANNELS * _INNER * _INNER
        down = [channels] + [_CHANNELS] * halvings
        self.latent = latent
        self.encoder = nn.Sequential(
            *_pairs(nn.Conv2d(a, b, 4, 2, 1) for a, b in pairwise(down)),
            nn.Flatten(),
            *_pairs([nn.Linear(flat, _UNITS), nn.Linear(_UNITS, _UNITS)]),
            nn.Linear(_UNITS, 2 * latent),
        )
        grow = [nn.ConvTranspose2d(a, b, 4, 2, 1) for a, b in pairwise(down[::-1])]
        self.decoder = nn.Sequential(
            *_pairs([nn.Linear(latent, _UNITS), nn.Linear(_UNITS, _UNITS)]),
            *_pairs([nn.Linear(_UNITS, flat)]),
            nn.Unflatten(1, (_CHANNELS, _INNER, _INNER)),
            *_pairs(grow[:-1]),
            grow[-1],
        )

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mu and log sigma^2 of the codes of images in [0, 1]: [n, C, H, W] -> twice [n, l]."""
        mu, log_variance = self.encoder(x).chunk(2, 1)
        return mu, log_variance

    def decode(self, z: Tensor) -> Tensor:
        """Return the logits of each pixel's Bernoulli distribution: [n, l] -> [n, C, H, W]."""
        logits: Tensor = self.decoder(z)
        return logits


def _pairs(layers: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the layers, each with a ReLU behind it."""
    return [module for layer in layers for module in (layer, nn.ReLU())]


def start(shape: tuple[int, int, int], generator: torch.Generator, latent: int = LATENT) -> BetaVAE:
    """Return a beta-VAE on the generator's device with torch's usual initial weights from it."""
    with torch.device("meta"):  # torch's own start would draw from the process-wide generator
        model = BetaVAE(shape, latent)
    fill(model, generator)
    return model


def negative_elbo(
    logits: Tensor, x: Tensor, mu: Tensor, log_variance: Tensor, beta: float = 1.0
) -> Tensor:
    """Return -log p(x | z) + beta KL(q(z | x) || N(0, I)) of each example; its mean over q bounds -log p(x) at beta 1.

    Parameters
    ----------
    logits, x : Tensor
        The decoder's and the images in [0, 1], float [n, C, H, W].
    mu, log_variance : Tensor
        Float [n, l].
    beta : float
        The divergence's weight.

    Returns
    -------
    Tensor
        Float [n].
    """
    pixels = F.binary_cross_entropy_with_logits(logits, x, reduction="none").flatten(1).sum(1)
    return pixels + beta * kl_to_prior(mu, log_variance)


class VAETraining:
    """Trains a beta-VAE by epochs; what it keeps between two of them, ``state`` returns.

    An epoch draws from a separate generator, so that a training that was interrupted and restored ends with the same
    bits as one that was not.

    Parameters
    ----------
    images, labels : Tensor
        Float [n, C, H, W] in [-1, 1], int64 [n], on the model's device.
    generator : callable
        Epoch, from 0 on -> the generator of its draws, on the model's device.
    beta, lr : float
        The divergence's weight, and Adam's learning rate.
    batch : int
        Images of a step; the last one of an epoch may have fewer.

    Attributes
    ----------
    epoch : int
        The epochs that are done.
    """

    def __init__(
        self,
        model: BetaVAE,
        images: Tensor,
        labels: Tensor,
        generator: Callable[[int], torch.Generator],
        *,
        beta: float = BETA,
        lr: float = LEARNING_RATE,
        batch: int = BATCH,
    ) -> None:
        self.epoch = 0
        self._model, self._images, self._labels = model, (images + 1) / 2, labels
        self._generator, self._beta, self._batch = generator, beta, batch
        self._adam = Adam(model.parameters(), lr)

    def run(self, epochs: int, after_step: Callable[[], None] | None = None) -> Iterator[float]:
        """Train until ``epochs`` are complete, and yield each one's mean loss; ``after_step`` is called before that.

        FloatingPointError if a loss is not finite.
        """
        while self.epoch < epochs:
            draws = self._generator(self.epoch)
            order = torch.randperm(len(self._images), generator=draws, device=draws.device)
            total = torch.zeros((), device=draws.device)
            for at in torch.split(order, self._batch):
                total += self._step(self._images[at], draws)
            self.epoch += 1
            mean = float(total) / len(self._images)
            loss = finite(mean, "the beta-VAE", f"epoch {self.epoch}")
            if after_step is not None:
                after_step()
            yield loss

    def _step(self, x: Tensor, draws: torch.Generator) -> Tensor:
        """Take a step along a batch and return the sum of its losses."""
        mu, log_variance = self._model.encode(x)
        noise = torch.randn(mu.shape, generator=draws, device=mu.device)
        logits = self._model.decode(sampled(mu, log_variance, noise))
        losses = negative_elbo(logits, x, mu, log_variance, self._beta)
        self._adam.zero_grad()
        losses.mean().backward()  # type: ignore[no-untyped-call]
        self._adam.step()
        return losses.detach().sum()

    @torch.no_grad()
    def draw(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Return images decoded from codes around the means of the labels' classes: float [n, C, H, W] in [-1, 1]."""
        codes = torch.cat([self._model.encode(x)[0] for x in torch.split(self._images, BATCH)])
        there, of_class = torch.unique(labels, return_inverse=True)
        means = mean_codes(codes, self._labels, there.tolist())[of_class]
        return draw_images(self._model, means, generator) * 2 - 1

    def state(self) -> dict[str, Tensor]:
        """Return a copy of the weights, of what Adam keeps, and the epochs that are done, by name."""
        return state_of(self._model, self._adam, epoch=self.epoch)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned, into a model of the same form."""
        load_state(state, self._model, self._adam)
        self.epoch = int(state["epoch"])


@torch.no_grad()
def draw_images(
    model: BetaVAE, means: Tensor, generator: torch.Generator, batch: int = BATCH
) -> Tensor:
    """Return an image for each z ~ N(mu_c, I): the probability of each pixel to be one.

    Parameters
    ----------
    means : Tensor
        mu_c for every image that is to be drawn, float [n, l].

    Returns
    -------
    Tensor
        Float [n, C, H, W] in [0, 1], on the device of ``means``.
    """
    z = means + torch.randn(means.shape, generator=generator, device=means.device)
    return torch.cat([torch.sigmoid(model.decode(part)) for part in torch.split(z, batch)])


# ---- vae -----------------------------------------------------------------------------------------
# The loss of a variational auto-encoder that also classifies (FedDPMS, section 3.2).


def kl_to_prior(mu: Tensor, log_variance: Tensor) -> Tensor:
    """Return KL(N(mu, sigma_z^2) || N(0, I)), summed over the code's dimensions, of each example.

    Parameters
    ----------
    mu, log_variance : Tensor
        Float [n, l].

    Returns
    -------
    Tensor
        Float [n].
    """
    return 0.5 * (mu.square() + log_variance.exp() - 1 - log_variance).sum(1)


def sampled(mu: Tensor, log_variance: Tensor, noise: Tensor) -> Tensor:
    """Return z = mu + sigma_z * noise, through which gradients reach both (reparameterisation)."""
    return mu + torch.exp(0.5 * log_variance) * noise


def auto_encoding_loss(
    mu: Tensor, log_variance: Tensor, drawn: Tensor, x: Tensor, error: str = "sum", kl: str = "sum"
) -> Tensor:
    """Return KL + squared error, the mean over examples: l_2 + l_3.

    Parameters
    ----------
    mu, log_variance : Tensor
        Float [n, l].
    drawn, x : Tensor
        The decoder's images and those that were encoded, float [n, C, H, W].
    error : str
        What the squared error is over an image's values, "sum" or "mean".
    kl : str
        The same of the KL over the code's numbers.
    """
    squared = F.mse_loss(drawn, x) * (x[0].numel() if error == "sum" else 1)
    return kl_to_prior(mu, log_variance).mean() / (1 if kl == "sum" else mu.shape[1]) + squared
