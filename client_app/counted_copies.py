"""A site's count, before images leave it, of those that equal or nearly equal one of its own."""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor

from common.samples.dataset import DatasetInfo
from common.samples.inputs import Samples
from common.wire.bundle import Bundle
from common.wire.codec import CarriesExamples, Payload
from common.wire.copies import EQUAL, NEAR, Copies
from synth.copies import nearest_distances
from synth.half_size import full_size

#: kinds of payload that were seen, and whether each carries examples: a look at one is as long as a small device's step
_CARRYING: dict[type[Payload], bool] = {}


def _carries_examples(part: Payload) -> TypeGuard[CarriesExamples]:
    kind = type(part)
    if kind not in _CARRYING:
        _CARRYING[kind] = isinstance(part, CarriesExamples)
    return _CARRYING[kind]


def count_copies(payload: Payload, samples: Samples, info: DatasetInfo) -> Copies | None:
    """Count the copies among the images of ``payload``; None where it carries none.

    Images are compared as a screen shows them, values from 0 to 1 and none beyond, as they are before a codec rounds
    them, with all images that the site trains on. Those of half the size are blown up first, as their receiver does.

    Parameters
    ----------
    info : DatasetInfo
        Whose mean and std undo the normalisation.
    """
    parts = payload.leaves() if isinstance(payload, Bundle) else [payload]
    carried = [part.examples for part in parts if _carries_examples(part)]
    if not (carried and info.has_images):
        return None
    images = torch.cat([full_size(each, info.shape) for each in carried])
    device = samples.labels.device
    mean, std = (torch.tensor(v, device=device)[:, None, None] for v in (info.mean, info.std))

    def shown(normalised: Tensor) -> Tensor:
        return (normalised.to(device).float() * std + mean).clamp(0, 1)

    distances = nearest_distances(shown(images), lambda at: shown(samples.inputs(at)), len(samples))
    equal = int((distances <= EQUAL).sum())
    return Copies(len(images), equal, int((distances <= NEAR).sum()) - equal)
