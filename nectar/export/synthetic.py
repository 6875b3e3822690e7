"""The images of a record as files for any other trainer: a PNG each in a folder a class, and all in one npz."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from common.data.user.rows import csv_of_rows
from common.errors import FederationError
from common.samples.dataset import DatasetInfo
from common.sites import ALL_SITES, is_site_name, site_slug
from common.storage.files import write_text
from common.wire.image_codecs import Contrast
from common.wire.images import SyntheticImages
from server_app.pictures import hard, in_bytes

_UNFIT = re.compile(r'[\\/:*?"<>|\x00-\x1f]')


def require_fit(sets: Mapping[str, SyntheticImages], info: DatasetInfo, path: Path) -> None:
    """Refuse sets read from ``path`` that no federation on this data set sent: a site's name becomes part of a path.

    Raises
    ------
    FederationError
        It names the first site whose name, images or labels cannot be.
    """
    for site, sent in sets.items():
        if site != ALL_SITES and not is_site_name(site):
            raise FederationError(
                f"{path} names a site {site[:80]!a}, which no site can be called: restore the record, or export it "
                "without its synthetic folder"
            )
        labels, known = hard(sent.labels), len(info.classes)
        fits = sent.images.shape[1:] == info.shape and labels.shape == sent.images.shape[:1]
        if not fits or not bool(((labels >= 0) & (labels < known)).all()):
            raise FederationError(
                f"{path} holds images of {site} that are not {info.name}'s: it needs shape {info.shape} and a label "
                f"below {known} for each"
            )


def write_synthetic(
    sets: Mapping[str, SyntheticImages],
    info: DatasetInfo,
    folder: Path,
    contrast: Contrast = "pixels",
) -> None:
    """Write ``images/<class>/<site>-<index>.png``, or of rows ``rows.csv``, and ``synthetic.npz`` below ``folder``.

    The pictures are in pixel space, clipped to what a picture shows or stretched to it, as ``contrast`` says, and
    rounded to bytes; a class that no site sent has an empty folder, so that the order of the folders stays that of
    the labels. The npz holds what was sent, neither clipped nor stretched: images float32 [n, C, H, W] in the
    model's normalised space, labels int64 [n] (or soft ones, as they came), sites text [n].
    """
    if info.has_images:
        _write_pictures(sets, info, folder, contrast)
    else:
        folder.mkdir()
        rows = torch.cat([sent.images for sent in sets.values()])
        labels = torch.cat([hard(sent.labels) for sent in sets.values()]).tolist()
        named = [info.classes[label] for label in labels]
        write_text(folder / "rows.csv", csv_of_rows(rows, named, info))
    np.savez_compressed(
        folder / "synthetic.npz",
        images=torch.cat([sent.images for sent in sets.values()]).numpy(),
        labels=torch.cat([sent.labels for sent in sets.values()]).numpy(),
        sites=np.repeat(list(sets), [len(sent.labels) for sent in sets.values()]),
    )


def _write_pictures(
    sets: Mapping[str, SyntheticImages], info: DatasetInfo, folder: Path, contrast: Contrast
) -> None:
    names = folder_names(info.classes)
    for name in names:
        (folder / "images" / name).mkdir(parents=True)
    for site, sent in sets.items():
        pixels, labels = _pictures(in_bytes(sent.images, info, contrast)), hard(sent.labels)
        for index, (picture, label) in enumerate(zip(pixels, labels.tolist(), strict=True)):
            path = folder / "images" / names[label] / f"{site_slug(site)}-{index:04d}.png"
            Image.fromarray(picture).save(path, format="PNG")


def _pictures(pixels: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return bytes [n, C, H, W] as Pillow takes them, [n, H, W] or [n, H, W, 3]."""
    bytes_: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] = (
        pixels[:, 0] if pixels.shape[1] == 1 else pixels.permute(0, 2, 3, 1).contiguous()
    ).numpy()
    return bytes_


def plain_name(name: str) -> str:
    """Return a class's name with what no folder's name can hold on some system as underscores."""
    return _UNFIT.sub("_", name)


def folder_names(classes: Sequence[str]) -> list[str]:
    """Return ``00-airplane``, ``01-automobile``, ...: sorted by name they are in the order of the labels."""
    width = max(2, len(str(len(classes) - 1)))
    return [f"{label:0{width}d}-{plain_name(name)}" for label, name in enumerate(classes)]


def labels_by_folder(classes: Sequence[str]) -> dict[str, int]:
    """Return the labels by folder name, with an index before the class's name or without."""
    labels = {name: label for label, name in enumerate(folder_names(classes))}
    for label, name in enumerate(classes):
        labels.setdefault(plain_name(name), label)
    return labels
