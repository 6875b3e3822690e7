"""What sites sent, kept in a record so that a person can look at it: the sets as they arrived, and pictures of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from common.data.user.rows import csv_of_rows
from common.samples.dataset import DatasetInfo
from common.samples.inputs import in_unit
from common.sites import site_slug
from common.storage import tensor_file
from common.storage.files import write_atomically, write_text
from common.wire.image_codecs import Contrast
from common.wire.images import SyntheticImages

SCHEMA = 1
"""Of the files of sets, as `nectar.records.synthetic_sets` reads them."""

#: the shortest side an image is drawn with, in pixels
_MIN_SIDE = 32


def save_grids(
    sets: Mapping[str, SyntheticImages],
    info: DatasetInfo,
    directory: Path,
    contrast: Contrast = "pixels",
) -> None:
    """Write one PNG a site, ``<slug>.png``; of rows and series a table in raw values, ``<slug>.csv``."""
    directory.mkdir(parents=True, exist_ok=True)
    for site, images in sets.items():
        if not info.has_images:
            names = [info.classes[label] for label in hard(images.labels).tolist()]
            write_text(
                directory / f"{site_slug(site)}.csv", csv_of_rows(images.images, names, info)
            )
            continue
        picture = grid(images.images, images.labels, info, contrast)
        write_atomically(directory / f"{site_slug(site)}.png", partial(picture.save, format="PNG"))


def grid(
    images: Tensor, labels: Tensor, info: DatasetInfo, contrast: Contrast = "pixels"
) -> Image.Image:
    """Draw images [n, C, H, W] in rows by class, as ``contrast`` says; soft labels count as their largest class."""
    pixels, labels = in_bytes(images, info, contrast), hard(labels)
    channels, height, width = pixels.shape[1:]
    scale = max(1, -(-_MIN_SIDE // min(height, width)))
    present = torch.unique(labels).tolist()
    columns = max(int((labels == c).sum()) for c in present)
    rows, gap = len(present), 1
    sheet = torch.full((channels, rows * (height + gap) - gap, columns * (width + gap) - gap), 255)
    sheet = sheet.to(torch.uint8)
    for row, c in enumerate(present):
        for column, image in enumerate(pixels[labels == c]):
            top, left = row * (height + gap), column * (width + gap)
            sheet[:, top : top + height, left : left + width] = image
    array = sheet[0].numpy() if channels == 1 else sheet.permute(1, 2, 0).contiguous().numpy()
    picture = Image.fromarray(array)
    size = (picture.width * scale, picture.height * scale)
    return picture.resize(size, Image.Resampling.NEAREST)


def save_sets(
    sets: Mapping[str, SyntheticImages],
    server_round: int,
    path: Path,
    contrast: Contrast = "pixels",
) -> None:
    """Write the sets of ``server_round``, and how to display them, to ``path`` atomically."""
    tensors: dict[str, torch.Tensor] = {}
    for index, images in enumerate(sets.values()):
        tensors[f"{index}.images"] = images.images
        tensors[f"{index}.labels"] = images.labels
    meta = {
        "schema": SCHEMA,
        "round": server_round,
        "sites": list(sets),
        "contrast": contrast,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    tensor_file.save(path, tensors, meta)


# ---- screen --------------------------------------------------------------------------------------
# Images of the model's normalised space as a screen shows them, and their labels as rows of a sheet need them.


def on_screen(images: Tensor, info: DatasetInfo, contrast: Contrast = "pixels") -> Tensor:
    """Return images [n, C, H, W] of the model's normalised space as float32 values from 0 to 1.

    ``pixels`` undoes the normalisation and clips. ``stretched`` undoes it too, then maps each image's own extremes,
    over all its channels together, to 0 and 1; an image of one value only becomes 0.5.
    """
    pixels = in_unit(info, images.float())
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
