"""How well a score tells members from controls: area under the curve, and members found at few false alarms."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

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


@dataclass(frozen=True)
class Found:
    """What an attack finds.

    Controls count by class as often as members do, or the class alone would tell them apart. An error is one standard
    error: binomial for shares, that of Hanley and McNeil (1982) for the area; for weighted controls with the number
    of equal ones that are worth as much (Kish).

    Parameters
    ----------
    area, area_error : float
        The chance that a member's score is above a control's, ties a half; of the half that fits nothing.
    found, found_error : float
        The share of all members above the threshold.
    false_alarms, false_alarms_error : float
        The share above it of the controls of the half that fits nothing.
    members, controls : int
        How many members there are, and controls in the half that is counted.
    """

    area: float
    area_error: float
    found: float
    found_error: float
    false_alarms: float
    false_alarms_error: float
    members: int
    controls: int


def figures(members: Scored, fitted: Scored, counted: Scored) -> Found | None:
    """Return what scores tell: the threshold is fitted on one half of the controls, the other is counted.

    Parameters
    ----------
    members, fitted, counted : Scored
        The members, and both halves of the controls. Members of classes that either half lacks are left out.

    Returns
    -------
    Found or None
        None where no member is of a class that both halves have.
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
        area,
        _area_error(area, number, effective),
        found,
        _binomial(found, number),
        alarms,
        _binomial(alarms, effective),
        number,
        len(counted.scores),
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
    ordered, at = controls.double().sort()
    below = torch.cat([weight.new_zeros(1), weight[at].cumsum(0)])
    scores = members.double()
    left = below[torch.searchsorted(ordered, scores)]
    right = below[torch.searchsorted(ordered, scores, right=True)]
    return float(((left + right) / 2).mean() / below[-1])


def _binomial(share: float, number: float) -> float:
    return math.sqrt(share * (1 - share) / number)


def _area_error(area: float, members: float, controls: float) -> float:
    one, two = area / (2 - area), 2 * area**2 / (1 + area)
    among = (members - 1) * (one - area**2) + (controls - 1) * (two - area**2)
    return math.sqrt(max(0.0, area * (1 - area) + among) / (members * controls))
