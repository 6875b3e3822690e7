"""What sites sent so that a person can look at what left: PNG grids of images, a row a class; rows as tables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from common.samples.dataset import DatasetInfo
from common.samples.row_text import csv_of_rows
from common.sites import site_slug
from common.storage.files import write_atomically, write_text
from common.wire.display_contrast import Contrast
from common.wire.synthetic_images import SyntheticImages
from server_app.screen import hard, in_bytes

#: the shortest side an image is drawn with, in pixels
_MIN_SIDE = 32


def save_grids(
    sets: Mapping[str, SyntheticImages],
    info: DatasetInfo,
    directory: Path,
    contrast: Contrast = "pixels",
) -> None:
    """Write one PNG a site, ``<slug>.png``; of rows and series a table in raw values, ``<slug>.csv``."""
    if sets:
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
