"""Synthetic images as a run sends them: what both sides say of their form."""

from __future__ import annotations

from torch import Tensor

from common.errors import ConfigError, PayloadError
from common.learning.run import Run
from common.wire.coders import Constants
from common.wire.images import SyntheticImages, SyntheticImagesSpec
from common.wire.jpeg import Sheet


def images_spec(
    run: Run, ipc: int, *, soft: bool = False, fewest: int = 1, half: bool = False
) -> SyntheticImagesSpec:
    """Return the form of images of the run's shape, at most ``ipc`` of a class; see `SyntheticImagesSpec`.

    With ``half`` they are half as high and wide.
    """
    shape = half_shape(run) if half else run.image_shape
    classes, constants = len(run.info.classes), picture_constants(run)
    spec = SyntheticImagesSpec(shape, classes, ipc, soft, fewest, *constants)
    try:
        if constants[0]:
            Sheet.of(spec.max_images, shape)
    except PayloadError as error:
        raise ConfigError(f"wire.images={run.config.wire.images} cannot hold: {error}") from None
    return spec


def picture_constants(run: Run) -> tuple[Constants, Constants]:
    """Return mean and std for a run that sends images as pictures; empty for another."""
    return (run.info.mean, run.info.std) if run.config.wire.pictures else ((), ())


def half_shape(run: Run) -> tuple[int, int, int]:
    """Return the shape of images half as high and wide as the run's; ConfigError if a side is odd."""
    channels, height, width = run.image_shape
    if height % 2 or width % 2:
        raise ConfigError(
            f"images of half the size need even sides, and those of {run.info.name} are {height} x {width}: leave "
            f"{run.config.section}.side=full"
        )
    return channels, height // 2, width // 2


def sent_images(run: Run, images: Tensor, labels: Tensor) -> SyntheticImages:
    """Return images, float [n, C, H, W], and labels, on any device, as ``wire.images`` sends them."""
    constants = run.info.mean, run.info.std
    return SyntheticImages(images.cpu(), labels.cpu(), run.config.wire.images, *constants)
