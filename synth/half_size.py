"""Images distilled at half their size: fewer numbers to learn and to send, of which a network sees them blown up."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from synth.matching_parts import Embedder


def halved(images: Tensor) -> Tensor:
    """Return means of 2 x 2 pixels: float [n, C, H / 2, W / 2] of images [n, C, H, W] of even sides."""
    return F.avg_pool2d(images, 2)


def doubled(images: Tensor) -> Tensor:
    """Return images blown up bilinearly: float [n, C, 2 H, 2 W] of images [n, C, H, W]."""
    return F.interpolate(images, scale_factor=2, mode="bilinear", align_corners=False)


def full_size(images: Tensor, shape: Sequence[int]) -> Tensor:
    """Return images [n, C, *] as large as those of ``shape`` (C, H, W): doubled where they are half as large."""
    return images if tuple(images.shape[-2:]) == tuple(shape[-2:]) else doubled(images)


class OfHalfSize(nn.Module):
    """A model of images of half its size, which sees them doubled.

    Parameters
    ----------
    model
        An nn.Module that embeds and classifies images of full size.
    """

    def __init__(self, model: Embedder) -> None:
        super().__init__()
        self.model = model

    @property
    def couples_samples(self) -> bool:
        """Whether samples of one batch see each other."""
        return self.model.couples_samples

    def embed(self, x: Tensor) -> Tensor:
        """Return h [n, d] of images [n, C, H / 2, W / 2]."""
        return self.model.embed(doubled(x))

    def classify(self, h: Tensor) -> Tensor:
        """Return the logits z [n, classes] of embeddings [n, d]."""
        return self.model.classify(h)
