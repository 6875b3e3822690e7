"""The audit at a site of what its owner is asked to let go: pictures in a review folder, and the site's own images.

Nothing of it leaves: the outcome is a file in that folder, which its owner alone may read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from common.data.folders.decode import Unreadable, read_image
from common.data.folders.folder import class_folders, list_split, split_folders
from common.data.folders.pictures import most_pixels
from common.errors import ConfigError
from common.samples.dataset import DatasetInfo
from common.samples.inputs import Samples
from common.settings.images import ImagesSettings
from common.storage.files import write_json
from nectar.audit.images.evidence import Evidence, Sent
from nectar.audit.images.examining import examined, notes_of
from nectar.audit.images.outcome import outcome
from server_app.run_directory import AUDIT

_SITE = "this site"
_NOTE = "Pictures that await a word have no class: each is held against images of all classes."
_PRIVATE = 0o077


def audit_review(folder: Path, data: Path, others: Path | None = None) -> dict[str, Any]:
    """Audit the pictures that await the owner's word in ``folder``, write the outcome there, and return it.

    Parameters
    ----------
    folder : Path
        The node config's review-dir, or one of the folders of pictures in it.
    data : Path
        The site's own images, ``<class>/*`` or ``train/<class>/*``; those in ``test/<class>/*`` are controls.
    others : Path, optional
        More controls: images of the same kind that the site does not train on, ``<class>/*``.

    Raises
    ------
    ConfigError
        If there are no pictures, no images of the site's, or no controls.
    DataError
        If a folder cannot be read.
    """
    pictures = _pictures(folder)
    form = _form(pictures[0])
    sent = _read(pictures, form)
    members = _read(_files(data, test=False), form)
    controls = _read(_files(data, test=True), form)
    if others is not None:
        controls = torch.cat([controls, _read(_files(others, test=False), form)])
    if not len(members):
        raise ConfigError(
            f"{data} holds no images that can be read: give the site's own, <class>/*."
        )
    if len(controls) < 2:
        raise ConfigError(
            "there is nothing to hold the site's images against: name a folder of images of the same kind that it "
            "does not train on with --others, or put some into test/<class>/ of its own."
        )
    kept = {_SITE: _samples(members)}
    one = torch.ones(len(sent), 1, dtype=torch.bool)
    shown = {_SITE: Sent(sent.flatten(1).float() / 255, one)}
    evidence = Evidence.of(kept, _samples(controls), _info(sent), shown)
    whole, sites = examined(evidence, {})
    about = {"controls": {"that the site does not train on": len(controls)}}
    content = outcome(whole, sites, about, [_NOTE, *notes_of(evidence)])
    before = os.umask(_PRIVATE)
    try:
        write_json(folder / AUDIT, content)
    finally:
        os.umask(before)
    return content


def _pictures(folder: Path) -> list[Path]:
    """Return the pictures in ``folder``, or in the folders in it."""
    if not folder.is_dir():
        raise ConfigError(
            f"there is no folder {folder}: give the review-dir of the site's node config."
        )
    found = sorted(folder.glob("*.png")) or sorted(folder.glob("[!.]*/*.png"))
    if not found:
        raise ConfigError(f"no pictures await a word in {folder}: there is nothing to audit.")
    return found


def _form(picture: Path) -> ImagesSettings:
    """Return how images are read to be held against the pictures."""
    try:
        with Image.open(picture, formats=["PNG"]) as image:
            return ImagesSettings(size=image.height, channels=1 if image.mode == "L" else 3)
    except (OSError, ValueError):
        raise ConfigError(f"{picture} is not a picture of a review.") from None


def _files(folder: Path, *, test: bool) -> list[Path]:
    classes = class_folders(folder)
    train, held = split_folders(folder, classes)
    split = held if test else train
    return (
        [] if split is None else [folder / f.path for f in list_split(folder, split, classes).files]
    )


def _read(files: Sequence[Path], form: ImagesSettings) -> torch.Tensor:
    """Return the images that can be read, uint8 [n, C, H, W]."""
    shape, arrays = (form.channels, form.size, form.size), []
    for path in files:
        try:
            arrays.append(read_image(path, form, most_pixels()))
        except Unreadable:
            continue
    return (
        torch.from_numpy(np.stack(arrays)) if arrays else torch.empty(0, *shape, dtype=torch.uint8)
    )


def _samples(images: torch.Tensor) -> Samples:
    return Samples.of(images, torch.zeros(len(images), dtype=torch.int64))


def _info(images: torch.Tensor) -> DatasetInfo:
    channels = images.shape[1]
    return DatasetInfo(
        _SITE, tuple(images.shape[1:]), ("",), (0.0,) * channels, (1.0,) * channels, 255.0
    )
