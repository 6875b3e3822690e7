"""The images that sites sent as files for any other trainer: a PNG each in a folder a class, and all in one npz."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from common.data import DatasetInfo
from common.wire import SyntheticImages
from server_app.export.names import folder_names


def write_synthetic(sets: Mapping[str, SyntheticImages], info: DatasetInfo, folder: Path) -> None:
    """Write ``images/<class>/<site>-<index>.png`` and ``synthetic.npz`` below ``folder``.

    The pictures are in pixel space, rounded to bytes and clipped to what a picture shows; a class that no site sent
    has an empty folder, so that the order of the folders stays that of the labels. The npz holds what was sent,
    unclipped: images float32 [n, C, H, W] in the model's normalised space, labels int64 [n], sites text [n].
    """
    names = folder_names(info.classes)
    for name in names:
        (folder / "images" / name).mkdir(parents=True)
    for site, sent in sets.items():
        pixels = _pixels(sent.images, info)
        for index, (picture, label) in enumerate(zip(pixels, sent.labels.tolist(), strict=True)):
            path = folder / "images" / names[label] / f"{site}-{index:04d}.png"
            Image.fromarray(picture).save(path, format="PNG")
    np.savez_compressed(
        folder / "synthetic.npz",
        images=torch.cat([sent.images for sent in sets.values()]).numpy(),
        labels=torch.cat([sent.labels for sent in sets.values()]).numpy(),
        sites=np.repeat(list(sets), [len(sent.labels) for sent in sets.values()]),
    )


def _pixels(images: Tensor, info: DatasetInfo) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return normalised images [n, C, H, W] as bytes, [n, H, W] or [n, H, W, 3]."""
    mean, std = (torch.tensor(v, dtype=torch.float32)[:, None, None] for v in (info.mean, info.std))
    pixels = ((images * std + mean).clamp(0, 1) * 255).round().to(torch.uint8)
    bytes_: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] = (
        pixels[:, 0] if pixels.shape[1] == 1 else pixels.permute(0, 2, 3, 1).contiguous()
    ).numpy()
    return bytes_
