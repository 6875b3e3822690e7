"""The loss of a variational auto-encoder that also classifies (FedDPMS, section 3.2)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def divergence(mu: Tensor, log_variance: Tensor) -> Tensor:
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
    return divergence(mu, log_variance).mean() / (1 if kl == "sum" else mu.shape[1]) + squared
