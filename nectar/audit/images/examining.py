"""The audit of images: each attack on all that was sent and on what each site sent, and how near that comes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from common.sites import ALL_SITES
from nectar.audit.images.attacks import ATTACKS, COUNTED, FITTED, MEMBER, Candidates
from nectar.audit.images.evidence import NOBODY, Evidence
from nectar.audit.images.figures import RATE, Found, Scored, figures

MOST_UNMIXED = 12_000
"""Candidates of a class up to which images are un-mixed: a table of all pairs of them is in memory."""


@dataclass(frozen=True)
class Nearest:
    """How far each of m images that a site sent lies from real ones of its class, root of the mean squared difference.

    Parameters
    ----------
    own, other : Tensor
        Float32 [m]: to the nearest one that the site trains on, and to the nearest control; NaN where there is none.
    by_chance : Tensor
        Float32 [m]: the share of the site's own images among its own and the controls, with which the nearest of all
        would be its own if they were drawn alike.
    """

    own: Tensor
    other: Tensor
    by_chance: Tensor

    @property
    def judged(self) -> Tensor:
        """Which images have both."""
        return self.own.isfinite() & self.other.isfinite()

    @property
    def nearer(self) -> float:
        """The share of images nearer to one of the site's own, a tie counting half; NaN without any."""
        own, other = self.own[self.judged], self.other[self.judged]
        return float(((own < other) + 0.5 * (own == other)).float().mean())

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON can state it, each image's distances with it."""
        return {
            "own": _numbers(self.own),
            "other": _numbers(self.other),
            "own_median": _median(self.own),
            "other_median": _median(self.other),
            "nearer_to_own": self.nearer if self.judged.any() else None,
            "nearer_by_chance": float(self.by_chance[self.judged].mean())
            if self.judged.any()
            else None,
        }


@dataclass(frozen=True)
class Examined:
    """What was found of one site, or of all.

    Parameters
    ----------
    images : int
        How many it sent.
    attacks : mapping of str to Found
        By the attack's name.
    nearest : Nearest or None
        None where it sent no images, or all sent them together.
    """

    images: int
    attacks: Mapping[str, Found]
    nearest: Nearest | None = None

    @property
    def strongest(self) -> str:
        """The name of the attack that finds the most members, of those alike the one with the larger area."""
        return max(
            self.attacks, key=lambda n: (self.attacks[n].found, self.attacks[n].area), default=""
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON can state it."""
        nearest = {} if self.nearest is None else {"nearest": self.nearest.to_dict()}
        attacks = {name: found.to_dict() for name, found in self.attacks.items()}
        return {"images": self.images, "strongest": self.strongest, "attacks": attacks, **nearest}


def examined(
    evidence: Evidence, by_model: Mapping[str, Tensor], rate: float = RATE
) -> tuple[Examined, dict[str, Examined]]:
    """Return what is found of all sites together, and of each.

    Parameters
    ----------
    evidence : Evidence
        Candidates, and what was sent.
    by_model : mapping of str to Tensor
        Scores of the candidates, float [n], of attacks on weights.
    rate : float
        The share of false alarms.
    """
    search = _Search(evidence)
    scores = {**search.scores, **by_model}
    of_all = {
        name: found
        for name, each in scores.items()
        if (found := _figures(evidence, each, None, rate)) is not None
    }
    whole = Examined(sum(map(len, evidence.sent.values())), of_all, search.nearest.get(ALL_SITES))
    sites = {}
    for index, site in enumerate(evidence.sites):
        own = {**search.by_site.get(site, {}), **by_model}
        attacks = {
            name: found
            for name, each in own.items()
            if (found := _figures(evidence, each, index, rate)) is not None
        }
        images = len(evidence.sent[site]) if site in evidence.sent else 0
        sites[site] = Examined(images, attacks, search.nearest.get(site))
    return whole, sites


def attacks_on(evidence: Evidence) -> list[str]:
    """Return the names of the attacks that can be made on what was sent."""
    if not sum(map(len, evidence.sent.values())):
        return []
    largest = int(evidence.candidates.labels.bincount().max())
    return [name for name in ATTACKS if name != "unmixing" or largest <= MOST_UNMIXED]


def note_of(evidence: Evidence) -> list[str]:
    """Say which attack was not made, and why."""
    if "unmixing" in attacks_on(evidence) or not attacks_on(evidence):
        return []
    return [
        f"Un-mixing was not tried: a class has more than {MOST_UNMIXED:,} candidates, too many to solve for here."
    ]


def _figures(evidence: Evidence, scores: Tensor, site: int | None, rate: float) -> Found | None:
    labels, kind = evidence.candidates.labels, evidence.kind
    mine = kind == MEMBER if site is None else evidence.owner == site
    scored = Scored(torch.nan_to_num(scores, nan=-torch.inf, neginf=-torch.inf), labels)
    return figures(scored.at(mine), scored.at(kind == FITTED), scored.at(kind == COUNTED), rate)


class _Search:
    """The attacks' scores of every candidate, and the nearest images, class by class.

    Attributes
    ----------
    scores : dict of str to Tensor
        By attack, against all that was sent: float32 [n].
    by_site : dict of str to dict
        By site and attack, against what it sent.
    nearest : dict of str to Nearest
        By site.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._names = list(evidence.sent)
        count = len(evidence.kind)
        none = torch.full((count,), -torch.inf)
        attacks = attacks_on(evidence)
        self.scores = {name: none.clone() for name in attacks}
        self.by_site = {
            site: {name: none.clone() for name in attacks}
            for site in evidence.sent
            if len(evidence.sent[site])
        }
        self.nearest = {
            site: Nearest(*(torch.full((len(one),), v) for v in (torch.inf, torch.inf, 0.0)))
            for site, one in evidence.sent.items()
        }
        for label in range(len(evidence.info.classes)):
            self._of_class(label)
        self.nearest = {
            site: Nearest(_gaps(one.own), _gaps(one.other), one.by_chance)
            for site, one in self.nearest.items()
        }

    def _of_class(self, label: int) -> None:
        """Let every attack have the candidates and the images of a class."""
        evidence = self._evidence
        rows = (evidence.candidates.labels == label).nonzero().flatten()
        columns = {
            site: one.of_class[:, label].nonzero().flatten() for site, one in evidence.sent.items()
        }
        if not len(rows) or not sum(map(len, columns.values())):
            return
        candidates = Candidates(evidence.pixels(rows), evidence.kind[rows])
        sent = torch.cat([evidence.sent[site].pixels[at] for site, at in columns.items()])
        sizes = [len(at) for at in columns.values()]
        for name in self.scores:
            found = ATTACKS[name](candidates, sent)
            self.scores[name][rows] = found.amax(1)
            for (site, at), part in zip(
                columns.items(), torch.split(found, sizes, dim=1), strict=True
            ):
                if not len(at):
                    continue
                self.by_site[site][name][rows] = part.amax(1)
                if name == "nearest":
                    self._nearest(site, at, rows, candidates, part)

    def _nearest(
        self, site: str, at: Tensor, rows: Tensor, candidates: Candidates, near: Tensor
    ) -> None:
        """Note the distances to the site's own images and to controls, exactly."""
        evidence = self._evidence
        owner, sent = evidence.owner[rows], evidence.sent[site].pixels[at]
        if site == ALL_SITES:
            own = owner != NOBODY
        else:
            own = owner == (
                evidence.sites.index(site) if site in evidence.sites else len(evidence.sites)
            )
        other = owner == NOBODY
        found = self.nearest[site]
        for mask, place in ((own, found.own), (other, found.other)):
            if mask.any():
                pixels = candidates.pixels[mask][near[mask].argmax(0)]
                apart = ((pixels - sent) ** 2).mean(1).sqrt()
                place[at] = torch.minimum(place[at], apart)
        found.by_chance[at] = float(own.sum() / (own | other).sum().clamp_min(1))


def _gaps(distances: Tensor) -> Tensor:
    return torch.where(distances.isfinite(), distances, torch.nan)


def _numbers(values: Tensor) -> list[float | None]:
    return [round(v, 5) if v == v else None for v in values.tolist()]


def _median(values: Tensor) -> float | None:
    known = values[values.isfinite()]
    return float(known.median()) if len(known) else None
