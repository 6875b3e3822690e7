"""Images of the model's normalised space as a screen shows them, and their labels as rows of a sheet need them."""

from __future__ import annotations

import torch
from torch import Tensor

from common.samples.dataset import DatasetInfo
from common.wire.display_contrast import Contrast


def on_screen(images: Tensor, info: DatasetInfo, contrast: Contrast = "pixels") -> Tensor:
    """Return images [n, C, H, W] of the model's normalised space as float32 values from 0 to 1.

    ``pixels`` undoes the normalisation and clips. ``stretched`` undoes it too, then maps each image's own extremes,
    over all its channels together, to 0 and 1; an image of one value only becomes 0.5.
    """
    mean, std = (torch.tensor(v, dtype=torch.float32)[:, None, None] for v in (info.mean, info.std))
    pixels = images.float() * std + mean
    if contrast == "pixels":
        return pixels.clamp(0, 1)
    low, high = pixels.amin((1, 2, 3), keepdim=True), pixels.amax((1, 2, 3), keepdim=True)
    stretched = (pixels - low) / (high - low)
    return torch.where(high > low, stretched, 0.5)


def in_bytes(images: Tensor, info: DatasetInfo, contrast: Contrast = "pixels") -> Tensor:
    """Return the same as uint8 [n, C, H, W]."""
    return (on_screen(images, info, contrast) * 255).round().to(torch.uint8)


def hard(labels: Tensor) -> Tensor:
    """Return labels int64 [n]: of soft ones, float [n, classes], the class with the most."""
    return labels.argmax(1) if labels.is_floating_point() else labels
