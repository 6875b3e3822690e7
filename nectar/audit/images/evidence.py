"""What an audit of images goes by: who was in the data, who was not, and what left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from common.draws.seeding import generator
from common.samples.dataset import DatasetInfo
from common.samples.inputs import Samples
from common.wire.synthetic_images import SyntheticImages
from nectar.audit.images.attacks import COUNTED, FITTED, MEMBER
from synth.half_size import doubled as blown_up

NOBODY = -1
"""The owner of a control."""


@dataclass(frozen=True)
class Sent:
    """Images that left a site, as pixels, values 0 to 1 where the site keeps to that.

    Parameters
    ----------
    pixels : Tensor
        Float32 [m, D].
    of_class : Tensor
        Bool [m, classes]: which classes an image stands for; of soft labels those with at least half of the most.
    """

    pixels: Tensor
    of_class: Tensor

    def __len__(self) -> int:
        return len(self.pixels)


@dataclass(frozen=True)
class Evidence:
    """Candidates, and what was sent.

    Parameters
    ----------
    candidates : Samples
        Members and controls, as they are stored.
    owner : Tensor
        int64 [n]: the position in ``sites`` of the site that trains on it, or NOBODY.
    kind : Tensor
        int64 [n], MEMBER, FITTED or COUNTED of :mod:`nectar.audit.images.attacks`.
    sent : mapping of str to Sent
        By site, or under ALL_SITES.
    """

    candidates: Samples
    owner: Tensor
    kind: Tensor
    sites: tuple[str, ...]
    info: DatasetInfo
    sent: Mapping[str, Sent]

    @classmethod
    def of(
        cls,
        members: Mapping[str, Samples],
        controls: Samples,
        info: DatasetInfo,
        sent: Mapping[str, Sent],
    ) -> Evidence:
        """Put it together; half of the controls of each class fit thresholds, the others are counted."""
        owners = [torch.full((len(one),), i) for i, one in enumerate(members.values())]
        owner = torch.cat([*owners, torch.full((len(controls),), NOBODY)])
        kind = torch.full((len(owner),), MEMBER)
        kind[owner == NOBODY] = _halves(controls.labels)
        return cls(
            everybody([*members.values(), controls]), owner, kind, tuple(members), info, sent
        )

    def pixels(self, rows: Tensor) -> Tensor:
        """Return candidates as float32 [n, D], values 0 to 1."""
        return self.candidates.raw[rows].flatten(1).to(torch.float32) / self.info.scale


def everybody(parts: Sequence[Samples]) -> Samples:
    """Return samples of one data set as one."""
    raw, labels = (
        torch.cat(each) for each in zip(*((p.raw, p.labels) for p in parts), strict=True)
    )
    return replace(parts[0], raw=raw, labels=labels)


def sent_of(images: SyntheticImages, info: DatasetInfo) -> Sent:
    """Return what a site sent, without the normalisation; images of half the size as networks see them."""
    mean, std = (torch.tensor(v, dtype=torch.float32)[:, None, None] for v in (info.mean, info.std))
    given = images.images.float()
    pixels = (given if given.shape[1:] == info.shape else blown_up(given)) * std + mean
    labels, classes = images.labels, len(info.classes)
    if labels.is_floating_point():
        return Sent(pixels.flatten(1), labels >= labels.amax(1, keepdim=True) / 2)
    return Sent(pixels.flatten(1), labels[:, None] == torch.arange(classes))


def together(sets: Sequence[Sent]) -> Sent:
    """Return several sets as one."""
    return Sent(torch.cat([s.pixels for s in sets]), torch.cat([s.of_class for s in sets]))


def _halves(labels: Tensor) -> Tensor:
    """Return FITTED or COUNTED for controls of these classes, int64 [n]: alternately, in an order that is drawn."""
    kind = torch.full((len(labels),), COUNTED)
    for label in torch.unique(labels).tolist():
        rows = (labels == label).nonzero().flatten()
        drawn = torch.randperm(len(rows), generator=generator(0, "audit-halves", label))
        kind[rows[drawn[::2]]] = FITTED
    return kind
