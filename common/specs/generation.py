"""The networks that a site's generator is made of, by the run's settings; the server lays one out before the record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from common.errors import ConfigError
from common.settings.generation import GenerationSettings
from synth.beta_vae import BetaVAE
from synth.diffusion import Schedule
from synth.unet import UNet


def require_buildable(
    kind: str, settings: GenerationSettings, shape: tuple[int, int, int], classes: int
) -> None:
    """Lay a ``diffusion`` or ``vae`` out without memory; ConfigError if the settings make none of such images."""
    with unbuildable():
        if kind == "diffusion":
            unet(settings, shape, classes, None)
            schedule(settings)
            return
        with torch.device("meta"):
            BetaVAE(shape, settings.latent)


@contextmanager
def unbuildable() -> Iterator[None]:
    """Raise ConfigError where a generator cannot be built."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(
            f"the generator cannot be built: {error}. Set other sizes of it (fedssyn.multipliers, fedssyn.attention, "
            "fedssyn.width, fedssyn.diffusion_steps), or another fedssyn.source."
        ) from None


def unet(
    settings: GenerationSettings,
    shape: tuple[int, int, int],
    classes: int,
    weights: torch.Generator | None,
) -> UNet:
    """Return the diffusion model's network, laid out alone without ``weights``."""
    return UNet(
        shape,
        classes,
        weights,
        width=settings.width,
        multipliers=settings.levels(),
        blocks=settings.blocks,
        attention=settings.attending(),
        dropout=settings.dropout,
    )


def schedule(settings: GenerationSettings) -> Schedule:
    """Return the diffusion model's schedule."""
    make = Schedule.cosine if settings.schedule == "cosine" else Schedule.linear
    return make(settings.diffusion_steps)
