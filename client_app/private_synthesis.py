"""What a site's private generator is charged, and where its draws come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.privacy import Event
from common.settings.generation import GenerationSettings
from synth.private_diffusion import PrivateDescent, steps_of

if TYPE_CHECKING:
    from client_app.device import DeviceClient

MECHANISM = "dp-ddpm"
"""What the ledger calls the training of a generator."""


def charge_generator(
    client: DeviceClient, settings: GenerationSettings, images: int, *, anew: bool
) -> None:
    """Charge the training of a generator on so many images, or go on with one that was charged before.

    Nothing where it has no noise.
    """
    if not settings.noise_multiplier:
        return
    rate = min(settings.batch, images) / images
    steps = steps_of(settings.epochs, images, settings.batch)
    event = Event(MECHANISM, settings.noise_multiplier, rate, steps)
    client.charge(*[event] * anew)


def descent_of(client: DeviceClient, settings: GenerationSettings) -> PrivateDescent | None:
    """Return how the generator's private steps are taken; None where it has no noise."""
    if not settings.noise_multiplier:
        return None
    return PrivateDescent(
        settings.clip,
        settings.noise_multiplier,
        settings.multiplicity,
        lambda step, n, rate: client.sample(f"synthesis-sample {step}", rate, n),
        lambda step, count: client.noise(f"synthesis-noise {step}", (count,)),
    )
