"""The audit of images: each attack on all that was sent and on what each site sent, and how near that comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from common.draws.seeding import generator
from common.samples.dataset import DatasetInfo
from common.samples.inputs import Samples
from common.sites import ALL_SITES
from common.wire.images import SyntheticImages
from nectar.audit.images.attacks import (
    ATTACKS,
    COUNTED,
    FITTED,
    MEMBER,
    RATE,
    Candidates,
    Scored,
    figures,
)
from nectar.records.record_shape import ExaminedSite, Found, Nearest
from nectar.text import MISSING, Table, aligned
from synth.distribution_matching import doubled as blown_up

MOST_UNMIXED = 8_000
"""Candidates of a class up to which images are un-mixed: two tables of all pairs of them are in memory."""

MOST_SITES = 100
"""Sites that get figures of their own, in order of their names; scores of every candidate are kept for each."""

#: images that were sent, held against a class's candidates at a time
_CHUNK = 1000


def nearest(own: Tensor, other: Tensor, by_chance: Tensor) -> Nearest:
    """Sum up images whose distances are ``own`` and ``other``, float [m], infinite if there is nothing."""
    judged = own.isfinite() & other.isfinite()
    figures: list[float | None] = [None] * 4
    if judged.any():
        own, other = own[judged], other[judged]
        nearer = (own < other).float() + 0.5 * (own == other)
        figures = [float(own.median()), float(other.median())]
        figures += [float(each.mean()) for each in (nearer, by_chance[judged])]
    return Nearest(**dict(zip(Nearest.model_fields, figures, strict=True)))


def examined(
    evidence: Evidence,
    by_model: Mapping[str, Tensor],
    by_sums: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> tuple[ExaminedSite, dict[str, ExaminedSite]]:
    """Return what is found of all sites together, and of each of the first hundred.

    Parameters
    ----------
    by_model : mapping of str to Tensor
        Scores of the candidates, float [n], of attacks on weights.
    by_sums : mapping of str to mapping of str to Tensor, optional
        Likewise, of attacks on sums, by site and of all.
    """
    search = _Search(evidence)
    for label in range(len(evidence.info.classes)):
        search.look_at(label)

    def found(who: str, members: Tensor, images: int) -> ExaminedSite:
        scores = {**search.scores.get(who, {}), **(by_sums or {}).get(who, {}), **by_model}
        each = {name: _figures(evidence, members, score) for name, score in scores.items()}
        attacks = {name: figure for name, figure in each.items() if figure is not None}
        strongest = max(attacks, key=lambda n: (attacks[n].found, attacks[n].area), default="")
        near = nearest(*search.distances[who]) if who in search.distances else None
        return ExaminedSite(images=images, strongest=strongest, attacks=attacks, nearest=near)

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
    """Return notes on what was not examined, and why."""
    notes = []
    if attacks_on(evidence) and "unmixing" not in attacks_on(evidence):
        notes.append(
            f"Un-mixing was not tried: a class has more than {MOST_UNMIXED:,} candidates, too many to solve for."
        )
    if len(evidence.sites) > MOST_SITES:
        notes.append(f"Figures by site cover the first {MOST_SITES} of {len(evidence.sites)}.")
    return notes


def _figures(evidence: Evidence, members: Tensor, scores: Tensor) -> Found | None:
    scored, asked = Scored(scores, evidence.candidates.labels), ~scores.isnan()
    groups = (members, evidence.kind == FITTED, evidence.kind == COUNTED)
    return figures(*(scored.at(group & asked) for group in groups))


class _Search:
    """The attacks' scores of every candidate, and the distances of the nearest, class by class.

    Attributes
    ----------
    scores : dict of str to dict
        By site and attack, against what it sent, and under ALL_SITES against all: float32 [n].
    distances : dict of str to Tensor
        By site, what `nearest` takes of each image that it sent: float32 [3, m].
    """

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._attacks = attacks_on(evidence)
        self._listed = [
            site for site in (ALL_SITES, *evidence.sites[:MOST_SITES]) if site in evidence.sent
        ]
        none = torch.full(evidence.kind.shape, -torch.inf)
        self.scores = {
            who: {name: none.clone() for name in self._attacks}
            for who in dict.fromkeys((ALL_SITES, *self._listed))
        }
        self.distances = {
            site: torch.full((3, len(evidence.sent[site])), torch.inf) for site in self._listed
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
                    if name == "nearest" and site in self._listed:
                        self._measure(site, at, rows, candidates.pixels, found)

    def _measure(self, site: str, at: Tensor, rows: Tensor, pixels: Tensor, near: Tensor) -> None:
        """Note the distances to the nearest of the site's own images and of the controls, exactly."""
        evidence, distances = self._evidence, self.distances[site]
        owner, sent = evidence.owner[rows], evidence.sent[site].pixels[at]
        other = owner == CONTROL
        own = ~other if site == ALL_SITES else owner == evidence.sites.index(site)
        for place, mask in enumerate((own, other)):
            if mask.any():
                distance = ((pixels[mask][near[mask].argmax(0)] - sent) ** 2).mean(1).sqrt()
                distances[place, at] = torch.minimum(distances[place, at], distance)
        distances[2, at] = float(own.sum() / (own | other).sum().clamp_min(1))


# ---- evidence ------------------------------------------------------------------------------------
# What an audit of images goes by: who was in the data, who was not, and what left.

CONTROL = -1
"""The owner of a control."""


@dataclass(frozen=True)
class Sent:
    """Images that left a site, as pixels, values 0 to 1 where the site keeps to that.

    Parameters
    ----------
    pixels : Tensor
        Float32 [m, D].
    of_class : Tensor
        Bool [m, classes]: which classes an image represents; of soft labels those with at least half of the most.
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
        int64 [n]: the position in ``sites`` of the site that trains on it, or CONTROL.
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
        owner = torch.cat([*owners, torch.full((len(controls),), CONTROL)])
        kind = torch.full((len(owner),), MEMBER)
        kind[owner == CONTROL] = _halves(controls.labels)
        return cls(
            concatenated([*members.values(), controls]), owner, kind, tuple(members), info, sent
        )

    def pixels(self, rows: Tensor) -> Tensor:
        """Return candidates as float32 [n, D], values 0 to 1."""
        return self.candidates.raw[rows].flatten(1).to(torch.float32) / self.info.scale


def concatenated(parts: Sequence[Samples]) -> Samples:
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


# ---- outcome -------------------------------------------------------------------------------------
# What an audit of images came to: as JSON in a record, and as tables.

SCHEMA = 1

LIMITS = (
    "What these attacks do not find may be found by others: a share near that of false alarms proves nothing. "
    "Un-mixing has every member among its candidates."
)


def outcome(
    overall: ExaminedSite,
    sites: Mapping[str, ExaminedSite],
    about: Mapping[str, Any],
    notes: Sequence[str],
) -> dict[str, Any]:
    """Return the outcome as JSON can state it.

    Parameters
    ----------
    about : mapping
        What was audited: controls by what they are.
    notes : sequence of str
        What could not be had.
    """
    return {
        "schema": SCHEMA,
        "rate": RATE,
        **about,
        "notes": [*notes, LIMITS],
        "all": overall.model_dump(),
        "sites": {site: each.model_dump() for site, each in sites.items()},
    }


def plus_minus(found: Mapping[str, Any], name: str, digits: int = 1) -> str:
    """Return a share in percent with its standard error."""
    return f"{100 * found[name]:.{digits}f} ± {100 * found[f'{name}_error']:.{digits}f} %"


def tables(content: Mapping[str, Any]) -> list[Table]:
    """Return what each attack finds of all sites, the strongest marked, and the figures of each site."""
    strongest = content["all"]["strongest"]
    attacks = [
        [
            f"{name} *" if name == strongest else name,
            f"{found['area']:.3f} ± {found['area_error']:.3f}",
            plus_minus(found, "found"),
            plus_minus(found, "false_alarms"),
        ]
        for name, found in content["all"]["attacks"].items()
    ]
    return [
        Table("Attacks on all sites together, the strongest with *", _ATTACK_HEAD, attacks),
        Table(
            "Attacks by site",
            _SITE_HEAD,
            [_site_row(site, each) for site, each in content["sites"].items()],
        ),
    ]


_ATTACK_HEAD = ("attack", "area", f"members found at {100 * RATE:g} %", "false alarms counted")
_SITE_HEAD = (
    *("site", "members", "images", "own", "other", "nearer to own", "by chance"),
    *("strongest", "found", "area"),
)


def _site_row(site: str, each: Mapping[str, Any]) -> list[str]:
    """Return members, images, median distances, share nearer to its own, and the strongest attack."""
    found, near = each["attacks"].get(each["strongest"]), each.get("nearest") or {}
    distances = (near.get(key) for key in ("own_median", "other_median"))
    shares = (near.get(key) for key in ("nearer_to_own", "nearer_by_chance"))
    return [
        site,
        f"{found['members']:,}" if found else MISSING,
        f"{each['images']:,}",
        *(MISSING if value is None else f"{value:.3f}" for value in distances),
        *(MISSING if value is None else f"{100 * value:.0f} %" for value in shares),
        each["strongest"] or MISSING,
        plus_minus(found, "found") if found else MISSING,
        f"{found['area']:.3f}" if found else MISSING,
    ]


def as_text(content: Mapping[str, Any]) -> str:
    """Return the outcome for a terminal."""
    shown = [aligned([table.head, *table.rows]) for table in tables(content) if table.rows]
    notes = [DISTANCES] if content["sites"] else []
    return "\n\n".join([sentence(content), *shown, *notes, *content["notes"]])


DISTANCES = (
    "own, other: median distance of a sent image from the nearest image of its class that the site trains on, and from "
    "the nearest control (root mean square of values 0 to 1). By chance: the share nearer to own if these were drawn "
    "alike."
)


def sentence(content: Mapping[str, Any]) -> str:
    """Say who the members and controls are, and what the strongest attack finds."""
    controls = ", ".join(f"{count:,} {what}" for what, count in content["controls"].items())
    overall = content["all"]
    found = overall["attacks"].get(overall["strongest"])
    members = f"{found['members']:,} members" if found else "No members"
    sentences = [f"{members} (all images that sites train on); controls: {controls}."]
    after = f" after round {content['round']}" if "round" in content else ""
    if overall["images"] or not found:
        sentences.append(f"{overall['images']:,} images that were sent were read{after}.")
    if found:
        sentences.append(
            f"The strongest attack, {overall['strongest']}, finds {plus_minus(found, 'found')} of the members where "
            f"{plus_minus(found, 'false_alarms')} of the controls are taken for some; area "
            f"{found['area']:.3f} ± {found['area_error']:.3f}."
        )
    return " ".join(sentences)
