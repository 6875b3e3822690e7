"""What a site's private generator is charged, and where its draws come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.privacy.events import Event
from common.samples.inputs import Samples
from common.settings.generation import GenerationSettings
from synth.private_diffusion import PrivateDescent, steps_of

if TYPE_CHECKING:
    from client_app.device import DeviceClient

MECHANISM = "dp-ddpm"
"""What the ledger calls the training of a generator."""


def known_examples(client: DeviceClient, rho: float) -> int:
    """Return how many examples a private generator is taken to be trained on, which is public.

    Of the site's own number where that is told, else of ``privacy.examples``; how many were chosen is nobody's to know.
    """
    config = client.run.config
    known = len(client.samples) if config.tells_counts else config.privacy.examples
    return max(1, round(rho * known))


def charge_generator(
    client: DeviceClient, settings: GenerationSettings, examples: int, *, first: bool
) -> None:
    """Charge the training of a generator on so many examples, or go on with one that was charged before.

    That it is trained on a share of them chosen by chance makes it no cheaper: nobody claims that. Nothing where it has
    no noise.
    """
    if not settings.noise_multiplier:
        return
    rate = min(settings.batch, examples) / examples
    steps = steps_of(settings.epochs, examples, settings.batch)
    event = Event(MECHANISM, settings.noise_multiplier, rate, steps)
    client.draws.charge(*[event] * first, resumable=True)


def descent_of(
    client: DeviceClient, settings: GenerationSettings, pool: Samples, examples: int
) -> PrivateDescent | None:
    """Return how the generator's private steps on ``pool`` are taken; None where it has no noise."""
    if not settings.noise_multiplier:
        return None
    return PrivateDescent(
        settings.multiplicity,
        examples,
        lambda step, rate: client.draws.sample(f"synthesis-sample {step}", rate, pool),
        lambda step, at: client.draws.rows(f"synthesis-draws {step}", pool)(step, at),
        lambda step: client.draws.gaussian(
            f"synthesis-noise {step}", settings.noise_multiplier, settings.clip
        ),
    )
