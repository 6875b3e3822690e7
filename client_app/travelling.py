"""What becomes of a phase's result on its way out: statistics stay, a model leaves as its update, pixels as a picture.

All of it is the run's ``wire`` and no method's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from common.specs.updates import covers, is_model, model_in, sends_updates
from common.wire.bundle import Bundle, leaves
from common.wire.codec import Payload, Spec
from common.wire.int8_update import Int8Update
from common.wire.pixels import Pixels
from common.wire.weights import Weights, WeightsSpec

if TYPE_CHECKING:
    from client_app.device import DeviceClient

_OWED = "owed"
"""The slot of what a site's updates have fallen short by."""


@dataclass(frozen=True)
class Received:
    """The model that a site was sent, as it was before the phase, and the names of its parameters."""

    weights: Weights
    parameters: tuple[str, ...]


def received(client: DeviceClient, given: Payload, takes: Spec) -> Received | None:
    """Return the model in what came, where the site is to answer with an update of it."""
    weights = model_in(given) if sends_updates(client.run.config) else None
    if weights is None:
        return None
    forms = (f for path, f in leaves(takes) if is_model(path) and isinstance(f, WeightsSpec))
    return Received(weights.lent(), next(forms).trained)


def travelling(client: DeviceClient, payload: Payload, sent: Received | None) -> Payload:
    """Return ``payload`` as it leaves, and remember what it falls short by; PayloadError if a change is not finite."""
    return _part(client, "", payload, sent)


def _part(client: DeviceClient, path: str, part: Payload, sent: Received | None) -> Payload:
    if isinstance(part, Bundle):
        parts = {n: _part(client, f"{path}/{n}", each, sent) for n, each in part.parts.items()}
        return Bundle(parts)
    if isinstance(part, Pixels):
        return replace(part, codec=client.run.config.wire.pixels)
    if not isinstance(part, Weights):
        return part
    if client.run.config.model.statistics == "local":
        part = _without_statistics(client, part)
    if sent is None or not is_model(path) or not covers(sent.weights, tuple(part.read_only)):
        return part
    return _update(client, part, sent)


def _without_statistics(client: DeviceClient, weights: Weights) -> Weights:
    """Return ``weights`` without the statistics that are the site's own."""
    names = [name for name in weights.read_only if name in client.run.spec.names]
    return weights.only(client.run.spec.only(names))


def _update(client: DeviceClient, ended: Weights, sent: Received) -> Int8Update:
    if not client.run.config.wire.error_feedback:
        return Int8Update.of(ended, sent.weights, sent.parameters)[0]
    owed = client.recall(_OWED)
    update, left = Int8Update.of(ended, sent.weights, sent.parameters, owed)
    client.remember(left, _OWED)
    return update
