"""Distillation by logits: several models' answers to the same images as one (FedDF, FedMD, DS-FL)."""

from __future__ import annotations

from torch import Tensor

from synth.private_release import Gaussian, clip_factors

LIMIT = 50.0
"""The largest logit above or below the mean of its image: e^50 to 1 is certainty in float32 too."""


def centred(logits: Tensor) -> Tensor:
    """Return logits [n, C] less their mean over the classes, cut at ``LIMIT``: their softmax is the same."""
    return (logits - logits.mean(1, keepdim=True)).clamp(-LIMIT, LIMIT)


def consensus(logits: Tensor, aggregation: str, temperature: float) -> Tensor:
    """Return all models' answer, float32 [n, C], each row of sum 1.

    Parameters
    ----------
    logits : Tensor
        [K, n, C], of K models, which count the same.
    aggregation : str
        ``mean``: softmax(mean z_k), FedDF's AVGLOGITS and FedMD's mean of scores. ``entropy``: DS-FL's entropy
        reduction, softmax(mean softmax(z_k) / T), which with a small T is sharper than the mean.
    """
    if aggregation == "mean":
        return logits.mean(0).softmax(1)
    return (logits.softmax(2).mean(0) / temperature).softmax(1)


def noisy(logits: Tensor, clip: float, gaussian: Gaussian) -> Tensor:
    """Return logits [n, C], together no longer than ``clip``, with noise: float32.

    One example more may change the model that answers, and so its logits, in any way. Both answers are in the ball of
    radius C, so that what is sent moves by 2 C at the most: ``gaussian`` is of a clip of that.
    """
    row = logits.detach().cpu().reshape(1, -1)
    steps = gaussian.steps(row, clip_factors([row], clip))
    return gaussian.released(steps).reshape(logits.shape).float()
