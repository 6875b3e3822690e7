"""The public images without labels on which models are distilled: where the server takes them from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.data.loading import load
from common.data.published.catalogue import NAMES
from common.division import Division
from common.draws.seeding import generator
from common.errors import ConfigError
from common.learning.run import Run
from common.samples.dataset import DatasetInfo, Split
from common.samples.inputs import in_unit, samples

_PURPOSE = "distil-images"


def public_images(run: Run) -> Tensor:
    """Return the images of ``distil.images``, at most ``distil.count``: uint8 [n, C, H, W], 0 the least a pixel shows.

    Raises
    ------
    ConfigError
        If there are no images, or they do not have the form of the run's own.
    DataError
        If the data set that is named cannot be had.
    """
    asked, draws = run.config.distil, generator(run.config.seed, _PURPOSE)
    if asked.images == "noise":
        return _bytes(torch.randn(asked.count, *run.info.shape, generator=draws), run.info)
    if asked.images == "validation":
        division = Division(run.config)
        found = _of_split(division.dataset.train, run.info, division.validation)
    elif asked.images.endswith(".npz"):
        found = _of_file(Path(asked.images), run.info)
    else:
        config = run.config
        form = None if asked.images in NAMES else config.images  # the run's own folders' form
        other = load(asked.images, config.data_dir, form, config.data, config.seed)
        found = _of_split(other.train, other.info)
    if not len(found) or found.shape[1:] != run.info.shape:
        advice = "set data.validation above 0 with data.validation_at=server"
        if len(found):
            form_of_it = f"images.channels={found.shape[1]} images.size={found.shape[-1]}"
            advice = f"convert your pictures to that form ({form_of_it})"
        raise ConfigError(
            f"distil.images={asked.images} gives {len(found)} images of shape {tuple(found.shape[1:])} where some of "
            f"{run.info.shape} are needed: {advice}, or name noise, a data set of the same shape, or a "
            "synthetic.npz of one"
        )
    return found[torch.randperm(len(found), generator=draws)[: asked.count]]


def _bytes(normalised: Tensor, info: DatasetInfo) -> Tensor:
    """Return images that a model takes as pixels for a screen."""
    return (in_unit(info, normalised).clamp(0, 1) * 255).round().to(torch.uint8)


def _of_split(
    split: Split, info: DatasetInfo, positions: NDArray[np.int64] | None = None
) -> Tensor:
    return _bytes(samples(split, info, positions).inputs(slice(None)), info)


def _of_file(path: Path, info: DatasetInfo) -> Tensor:
    """Return the images of what an export wrote; nothing in it is unpickled."""
    try:
        with np.load(path, allow_pickle=False) as file:
            images = torch.from_numpy(np.asarray(file["images"], dtype=np.float32))
        if images.ndim == 4 and images.shape[1] == info.shape[0] and bool(images.isfinite().all()):
            return _bytes(images, info)
        reason = "its array `images` does not hold finite images with the run's channels"
    except (OSError, ValueError, KeyError) as error:
        reason = str(error)
    raise ConfigError(
        f"distil.images={path} cannot be read ({reason}): give the synthetic.npz that `nectar export` wrote of a run "
        "on the same data set, on the server's machine"
    )
