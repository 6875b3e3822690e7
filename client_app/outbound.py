"""What becomes of a phase's result on its way out: statistics stay, a model leaves as its update, pixels as a picture.

All of it is the run's ``wire`` and no method's. Before images leave a site, it counts those that equal or nearly equal
one of its real images.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from common.samples.dataset import DatasetInfo
from common.samples.inputs import Samples, in_unit
from common.specs.updates import covers, is_model, model_in, sends_updates
from common.wire.bundle import Bundle, leaves
from common.wire.form import Payload, Spec
from common.wire.images import EQUAL, NEAR, Copies, Pixels
from common.wire.int8_update import Int8Update
from common.wire.weights import Weights, WeightsSpec
from synth.copies import nearest_distances
from synth.distribution_matching import full_size

if TYPE_CHECKING:
    from client_app.device import DeviceClient

_RESIDUAL = "owed"
"""The slot of what a site's updates have fallen short by."""


@dataclass(frozen=True)
class ReceivedModel:
    """The model that a site received, unchanged by the phase, and the names of its parameters."""

    weights: Weights
    parameters: tuple[str, ...]


def received_model(client: DeviceClient, given: Payload, takes: Spec) -> ReceivedModel | None:
    """Return the model in what came, where the site is to answer with an update of it."""
    weights = model_in(given) if sends_updates(client.run.config) else None
    if weights is None:
        return None
    forms = (f for path, f in leaves(takes) if is_model(path) and isinstance(f, WeightsSpec))
    return ReceivedModel(weights.copy_on_write(), next(forms).trained)


def outbound(
    client: DeviceClient, part: Payload, sent: ReceivedModel | None, path: str = ""
) -> Payload:
    """Return ``part`` as it leaves, and remember what it falls short by; PayloadError if a change is not finite."""
    config = client.run.config
    if isinstance(part, Bundle):
        inside = part.parts.items()
        return Bundle({n: outbound(client, each, sent, f"{path}/{n}") for n, each in inside})
    if isinstance(part, Pixels):
        return replace(part, codec=config.wire.pixels)
    if not isinstance(part, Weights):
        return part
    if config.model.stays_in_part:  # without what is the site's own
        names = [name for name in part.read_only if name in client.run.spec.names]
        part = part.only(client.run.spec.only(names))
    if sent is None or not is_model(path) or not covers(sent.weights, tuple(part.read_only)):
        return part
    if not config.wire.error_feedback:
        return Int8Update.of(part, sent.weights, sent.parameters)[0]
    owed = client.recall(_RESIDUAL)
    update, left = Int8Update.of(part, sent.weights, sent.parameters, owed)
    client.remember(left, _RESIDUAL)
    return update


def count_copies(payload: Payload, samples: Samples, info: DatasetInfo) -> Copies | None:
    """Count the copies among the images of ``payload``; None if it carries none.

    Images are compared as a screen shows them, values from 0 to 1 and none beyond, as they are before a codec rounds
    them, with all images that the site trains on. Those of half the size are blown up first, as their receiver does.

    Parameters
    ----------
    info : DatasetInfo
        Whose mean and std undo the normalisation.
    """
    parts = payload.leaves() if isinstance(payload, Bundle) else [payload]
    # As `CarriesExamples` has them: to ask for that takes as long as a small device's step.
    found = (getattr(part, "examples", None) for part in parts)
    carried = [examples for examples in found if examples is not None]
    if not (carried and info.has_images):
        return None
    images = torch.cat([full_size(each, info.shape) for each in carried])

    def shown(normalised: Tensor) -> Tensor:
        return in_unit(info, normalised.to(samples.labels.device).float()).clamp(0, 1)

    distances = nearest_distances(shown(images), lambda at: shown(samples.inputs(at)), len(samples))
    equal = int((distances <= EQUAL).sum())
    return Copies(len(images), equal, int((distances <= NEAR).sum()) - equal)
