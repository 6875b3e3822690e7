"""Attacks on images that were sent: how much each candidate looks as if it had gone into each of them.

All of one class. A candidate is an image of which the attacker wants to know whether a site had it; the controls among
them no site had, and the attacker knows that. Rows are images, flat, values 0 to 1 unless a site sent others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nectar.records.record_shape import Found

MEMBER, FITTED, COUNTED = -1, 0, 1
"""What a candidate is: a member, or a control of the half that fits a threshold, or of that which is counted."""

#: for un-mixing: the damping, as a share of the candidates' mean squared length; candidates that an image may be
#: made of; sweeps over them
_DAMPING, _SHORTLIST, _SWEEPS = 0.01, 64, 20


@dataclass(frozen=True)
class Candidates:
    """The candidates of one class.

    Parameters
    ----------
    pixels : Tensor
        Float [n, D].
    kind : Tensor
        int64 [n], MEMBER, FITTED or COUNTED.
    """

    pixels: Tensor
    kind: Tensor


Scorer = Callable[[Tensor], Tensor]
"""Takes images that were sent, float [m, D]; returns float [n, m], the higher the better a candidate matches."""


def nearness(candidates: Candidates) -> Scorer:
    """Score minus the distance, the root of the mean squared difference."""
    centre = candidates.pixels.mean(0)  # near the origin products lose less
    pixels = candidates.pixels - centre
    lengths = (pixels**2).sum(1)[:, None]

    def score(sent: Tensor) -> Tensor:
        moved = sent - centre
        squared = lengths + (moved**2).sum(1) - 2 * pixels @ moved.T
        return -(squared.clamp_min(0) / sent.shape[1]).sqrt()

    return score


def correlation(candidates: Candidates) -> Scorer:
    """Score the cosine after the class's mean is subtracted from both.

    The mean is of the controls, and for each half of these of the other half: a mean that has an image in it lies
    nearer to that image than to a member.
    """
    pixels, kind = candidates.pixels, candidates.kind
    sides = [
        (rows, mean, _unit(pixels[rows] - mean))
        for rows, of in ((kind == FITTED, COUNTED), (kind != FITTED, FITTED))
        for mean in [torch.nan_to_num(pixels[kind == of].mean(0))]
    ]

    def score(sent: Tensor) -> Tensor:
        found = pixels.new_empty(len(pixels), len(sent))
        for rows, mean, directions in sides:
            found[rows] = directions @ _unit(sent - mean).T
        return found

    return score


def unmixing(candidates: Candidates) -> Scorer:
    """Score the weights with which candidates make each image: least squares, none below 0, at most 1 in all.

    Damped least squares over all candidates choose a shortlist for each image; on that, coordinate descent finds the
    weights that are not negative. An image that is no mean of candidates, such as noise, takes large weights of many,
    which are scaled to a sum of 1. Every member is among the candidates: an attacker who has them all finds this.
    """
    centre = candidates.pixels.mean(0)
    pixels = candidates.pixels - centre
    products = pixels @ pixels.T
    lengths = products.diagonal().clone()
    products.diagonal().add_(_DAMPING * float(lengths.mean().clamp_min(1e-12)))
    solver = torch.linalg.cholesky(products)
    products.diagonal().copy_(lengths)

    def score(sent: Tensor) -> Tensor:
        with_sent = pixels @ (sent - centre).T
        found = _not_negative(products, with_sent, torch.cholesky_solve(with_sent, solver))
        return found / found.sum(0).clamp_min(1)

    return score


def _not_negative(products: Tensor, with_sent: Tensor, first: Tensor) -> Tensor:
    """Return weights [n, m] at or above 0 of the candidates whose ``first`` weights are the largest."""
    listed = first.topk(min(_SHORTLIST, len(first)), dim=0).indices.T
    among = products[listed[:, :, None], listed[:, None, :]]
    wanted, weights = with_sent.T.gather(1, listed), first.T.gather(1, listed).clamp_min(0)
    lengths = among.diagonal(dim1=1, dim2=2).clamp_min(1e-12)
    for _ in range(_SWEEPS):
        for j in range(weights.shape[1]):
            short = wanted[:, j] - (among[:, j] * weights).sum(1)
            weights[:, j] = (weights[:, j] + short / lengths[:, j]).clamp_min(0)
    return torch.zeros_like(first.T).scatter_(1, listed, weights).T


def _unit(rows: Tensor) -> Tensor:
    unit: Tensor = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return unit


ATTACKS: dict[str, Callable[[Candidates], Scorer]] = {
    "nearest": nearness,
    "correlation": correlation,
    "unmixing": unmixing,
}
"""The attacks on images by name."""


# ---- figures -------------------------------------------------------------------------------------
# How well a score separates members from controls: area under the curve, and members found at few false alarms.

RATE = 0.01
"""The share of controls that may be taken for members."""


@dataclass(frozen=True)
class Scored:
    """The scores of some candidates, higher where one looks more like a member, and their classes.

    Parameters
    ----------
    scores : Tensor
        Float [n]; minus infinity where there was nothing to hold a candidate against.
    labels : Tensor
        int64 [n].
    """

    scores: Tensor
    labels: Tensor

    def at(self, positions: Tensor) -> Scored:
        """Return those at ``positions``, a mask or int64."""
        return Scored(self.scores[positions], self.labels[positions])


def figures(members: Scored, fitted: Scored, counted: Scored) -> Found | None:
    """Return the figures of scores: the threshold is fitted on one half of the controls, the other is counted.

    Parameters
    ----------
    members, fitted, counted : Scored
        The members, and both halves of the controls. Members of classes that either half lacks are left out.

    Returns
    -------
    Found or None
        None if no member has a class that both halves have.
    """
    both = fitted.labels[torch.isin(fitted.labels, counted.labels)]
    members = members.at(torch.isin(members.labels, both))
    if not len(members.scores):
        return None
    threshold = threshold_at(fitted.scores, weights(fitted.labels, members.labels), RATE)
    worth = weights(counted.labels, members.labels)
    effective = float(worth.sum() ** 2 / (worth**2).sum())
    area = area_under(members.scores, counted.scores, worth)
    found = float((members.scores > threshold).double().mean())
    alarms = float((worth * (counted.scores > threshold)).sum() / worth.sum())
    number = len(members.scores)
    return Found(
        area=area,
        area_error=_area_error(area, number, effective),
        found=found,
        found_error=_binomial(found, number),
        false_alarms=alarms,
        false_alarms_error=_binomial(alarms, effective),
        members=number,
        controls=len(counted.scores),
    )


def weights(labels: Tensor, members: Tensor) -> Tensor:
    """Return for controls of classes ``labels`` weights, float64 [n], with which their classes are the members'."""
    classes = int(torch.cat([labels, members]).max()) + 1
    wanted = torch.bincount(members, minlength=classes).double()
    there = torch.bincount(labels, minlength=classes).double()
    return (wanted / there.clamp_min(1))[labels]


def threshold_at(scores: Tensor, weight: Tensor, rate: float) -> float:
    """Return the least of ``scores`` that no more than ``rate`` of their weight lies above."""
    ordered, at = scores.double().sort(descending=True)
    above = torch.cat([weight.new_zeros(1), weight[at].cumsum(0)[:-1]])
    first = torch.searchsorted(-ordered, -ordered)  # equal scores lie above a threshold together
    allowed = above[first] <= rate * weight.sum()
    return float(ordered[allowed][-1])


def area_under(members: Tensor, controls: Tensor, weight: Tensor) -> float:
    """Return the chance that a member's score is above that of a control drawn by weight; a tie counts half."""
    from sklearn.metrics import roc_auc_score  # a second of imports, which a report does without

    _, ranks = torch.unique(torch.cat([members, controls]), return_inverse=True)  # may be infinite
    truth = torch.arange(len(ranks)) < len(members)
    worth = torch.cat([weight.new_ones(len(members)), weight])
    return float(roc_auc_score(truth, ranks, sample_weight=worth))


def _binomial(share: float, number: float) -> float:
    return math.sqrt(share * (1 - share) / number)


def _area_error(area: float, members: float, controls: float) -> float:
    one, two = area / (2 - area), 2 * area**2 / (1 + area)
    among = (members - 1) * (one - area**2) + (controls - 1) * (two - area**2)
    return math.sqrt(max(0.0, area * (1 - area) + among) / (members * controls))
