"""A site's private local training: what is public of it, what the ledger is charged, and where its draws come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor, nn

from common.errors import FederationError
from common.learning.planned_steps import PrivateSteps
from common.learning.private_training import dp_sgd
from common.learning.training import Rule
from common.models import couples_samples
from common.privacy.events import Event
from common.samples.inputs import Samples

if TYPE_CHECKING:
    from client_app.device import DeviceClient

MECHANISM = "dp-sgd"
"""What the ledger calls it. Neighbouring data sets have one example more or less, and say the same of their counts."""


def charge(client: DeviceClient, steps: PrivateSteps) -> None:
    """Charge what ``steps`` cost, before the first of them."""
    noise = client.run.config.privacy.noise_multiplier
    client.draws.charge(Event(MECHANISM, noise, steps.rate, steps.steps))


def refuse_coupled(model: nn.Module) -> None:
    """Refuse a model whose examples change each other's gradients, as batch norm has them: FederationError."""
    model.train()
    if couples_samples(model):
        raise FederationError(
            "the model normalises over its batch, so that an example changes the gradients of others, and to clip each "
            "by itself bounds nothing: choose model.norm=group or instance, or a model without batch norm, or set "
            "privacy.noise_multiplier=0"
        )


def rule_of(client: DeviceClient, purpose: str, steps: PrivateSteps) -> Rule:
    """Return how gradients come about, by the run's clip and noise; ``purpose`` names the training they are for."""
    privacy = client.run.config.privacy
    gaussian = client.draws.gaussian(f"{purpose} noise", privacy.noise_multiplier, privacy.clip)
    return dp_sgd(gaussian, steps.expected)


def samples_of(
    client: DeviceClient, purpose: str, steps: PrivateSteps, pool: Samples
) -> Iterator[Tensor]:
    """Yield the positions in the pool that each step draws, int64 [m], each by itself with the steps' rate."""
    for step in range(steps.steps):
        yield client.draws.sample(f"{purpose} sample {step}", steps.rate, pool)
