"""The audit of images: each attack on all that was sent and on what each site sent, and how near that comes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from common.sites import ALL_SITES
from nectar.audit.images.attacks import ATTACKS, COUNTED, FITTED, MEMBER, Candidates
from nectar.audit.images.evidence import NOBODY, Evidence
from nectar.audit.images.figures import Found, Scored, figures

MOST_UNMIXED = 8_000
"""Candidates of a class up to which images are un-mixed: two tables of all pairs of them are in memory."""

MOST_SITES = 100
"""Sites that get figures of their own, in order of their names; scores of every candidate are kept for each."""

#: images that were sent, held against a class's candidates at a time
_CHUNK = 1000


@dataclass(frozen=True)
class Nearest:
    """How near the images that a site sent come to real ones of their class, root of the mean squared difference.

    Parameters
    ----------
    own_median, other_median : float or None
        The median distance to the nearest image that the site trains on, and to the nearest control.
    nearer_to_own : float or None
        The share of the images that lie nearer to the former, a tie counting half.
    nearer_by_chance : float or None
        What that share would be if both were drawn alike: the share of the site's own among both, on average.
    """

    own_median: float | None = None
    other_median: float | None = None
    nearer_to_own: float | None = None
    nearer_by_chance: float | None = None

    @classmethod
    def of(cls, own: Tensor, other: Tensor, by_chance: Tensor) -> Nearest:
        """Sum up images whose distances are ``own`` and ``other``, float [m], infinite where there is nothing."""
        judged = own.isfinite() & other.isfinite()
        if not judged.any():
            return cls()
        own, other = own[judged], other[judged]
        nearer = (own < other).float() + 0.5 * (own == other)
        means = (float(each.mean()) for each in (nearer, by_chance[judged]))
        return cls(float(own.median()), float(other.median()), *means)


@dataclass(frozen=True)
class Examined:
    """What was found of one site, or of all.

    Parameters
    ----------
    attacks : mapping of str to Found
        By the attack's name.
    nearest : Nearest or None
        None where it sent no images, and for all sites unless what they sent is known for all together only.
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


def examined(
    evidence: Evidence, by_model: Mapping[str, Tensor]
) -> tuple[Examined, dict[str, Examined]]:
    """Return what is found of all sites together, and of each of the first hundred.

    Parameters
    ----------
    by_model : mapping of str to Tensor
        Scores of the candidates, float [n], of attacks on weights.
    """
    search = _Search(evidence)
    for label in range(len(evidence.info.classes)):
        search.look_at(label)

    def found(who: str, members: Tensor, images: int) -> Examined:
        scores = {**search.scores.get(who, {}), **by_model}
        each = {name: _figures(evidence, members, score) for name, score in scores.items()}
        attacks = {name: figure for name, figure in each.items() if figure is not None}
        apart = search.apart.get(who)
        return Examined(images, attacks, None if apart is None else Nearest.of(*apart))

    sent = {site: len(one) for site, one in evidence.sent.items()}
    sites = {
        site: found(site, evidence.owner == index, sent.get(site, 0))
        for index, site in enumerate(evidence.sites[:MOST_SITES])
    }
    return found(ALL_SITES, evidence.kind == MEMBER, sum(sent.values())), sites


def attacks_on(evidence: Evidence) -> list[str]:
    """Return the names of the attacks that can be made on what was sent."""
    if not any(map(len, evidence.sent.values())):
        return []
    largest = int(evidence.candidates.labels.bincount().max())
    return [name for name in ATTACKS if name != "unmixing" or largest <= MOST_UNMIXED]


def notes_of(evidence: Evidence) -> list[str]:
    """Say what was not examined, and why."""
    notes = []
    if attacks_on(evidence) and "unmixing" not in attacks_on(evidence):
        notes.append(
            f"Un-mixing was not tried: a class has more than {MOST_UNMIXED:,} candidates, too many to solve for here."
        )
    if len(evidence.sites) > MOST_SITES:
        notes.append(f"Figures by site are of the first {MOST_SITES} of {len(evidence.sites)}.")
    return notes


def _figures(evidence: Evidence, members: Tensor, scores: Tensor) -> Found | None:
    scored = Scored(scores, evidence.candidates.labels)
    return figures(
        scored.at(members), scored.at(evidence.kind == FITTED), scored.at(evidence.kind == COUNTED)
    )


class _Search:
    """The attacks' scores of every candidate, and the distances of the nearest, class by class.

    Attributes
    ----------
    scores : dict of str to dict
        By site and attack, against what it sent, and under ALL_SITES against all: float32 [n].
    apart : dict of str to Tensor
        By site, what :meth:`Nearest.of` takes of each image that it sent: float32 [3, m].
    """

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._attacks = attacks_on(evidence)
        self._told = [
            site for site in (ALL_SITES, *evidence.sites[:MOST_SITES]) if site in evidence.sent
        ]
        none = torch.full(evidence.kind.shape, -torch.inf)
        self.scores = {
            who: {name: none.clone() for name in self._attacks}
            for who in dict.fromkeys((ALL_SITES, *self._told))
        }
        self.apart = {
            site: torch.full((3, len(evidence.sent[site])), torch.inf) for site in self._told
        }

    def look_at(self, label: int) -> None:
        """Let every attack have the candidates and the images of a class."""
        evidence = self._evidence
        rows = (evidence.candidates.labels == label).nonzero().flatten()
        places = {
            site: one.of_class[:, label].nonzero().flatten() for site, one in evidence.sent.items()
        }
        if not len(rows) or not any(map(len, places.values())):
            return
        candidates = Candidates(evidence.pixels(rows), evidence.kind[rows])
        for name in self._attacks:
            score = ATTACKS[name](candidates)
            for site, all_at in places.items():
                for at in torch.split(all_at, _CHUNK) if len(all_at) else ():
                    found = score(evidence.sent[site].pixels[at])
                    for who in {ALL_SITES, site} & self.scores.keys():
                        best = self.scores[who][name]
                        best[rows] = torch.maximum(best[rows], found.amax(1))
                    if name == "nearest" and site in self._told:
                        self._measure(site, at, rows, candidates.pixels, found)

    def _measure(self, site: str, at: Tensor, rows: Tensor, pixels: Tensor, near: Tensor) -> None:
        """Note the distances to the nearest of the site's own images and of the controls, exactly."""
        evidence, apart = self._evidence, self.apart[site]
        owner, sent = evidence.owner[rows], evidence.sent[site].pixels[at]
        other = owner == NOBODY
        own = ~other if site == ALL_SITES else owner == evidence.sites.index(site)
        for place, mask in enumerate((own, other)):
            if mask.any():
                distance = ((pixels[mask][near[mask].argmax(0)] - sent) ** 2).mean(1).sqrt()
                apart[place, at] = torch.minimum(apart[place, at], distance)
        apart[2, at] = float(own.sum() / (own | other).sum().clamp_min(1))
