"""Find absurd replies: an update far longer, or a loss of the same weights far higher, than the others'.

A site whose training diverged sends such a thing without malice, and one such reply is enough to ruin an average.
The bounds are wide: they keep a run alive, and are no defence against false values within them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from common.learning.compute import pieces
from common.wire.weights import Weights

#: updates of which the middle one is taken for what is usual
ENOUGH = 3

#: how often the length that was usual in an earlier round an update may always be long
_EARLIER_FACTOR = 2

#: how often the loss that is usual one site's may be: all of them evaluate the same weights
_LOSS_FACTOR = 100


def too_long(
    lengths: Sequence[float], own: float, factor: float, *, known: int = 0, earlier: float = 0.0
) -> list[str | None]:
    """Return for each update of a round why it is absurdly long, or None.

    Parameters
    ----------
    own : float
        The length of the round's weights, the measure of a single update. Where there are fewer than
        ``ENOUGH``, or the others have not moved, none that is shorter is implausible.
    factor : float
        How often the lower median of the others' lengths an update may be long; 0 for any length.
    known : int
        How many of the first ones were compared before; they get no result.
    earlier : float
        The length that was usual in an earlier round: none of up to twice that is implausible. Where half of the sites
        have learned all they can, the others' honest updates are thousands of times the usual length, as they were when
        all moved alike.
    """
    ranked, reasons = sorted(lengths), list[str | None]()
    for length in lengths[known:]:
        usual = _median_of_the_others(ranked, length) if len(ranked) > 1 else own
        floor = 0.0 if len(ranked) >= ENOUGH and usual else own
        if not factor or length <= max(factor * usual, floor, _EARLIER_FACTOR * earlier):
            reasons.append(None)
            continue
        more = f"federation.max_update={factor:g} times the {usual:.2g} that is usual in this round"
        if _EARLIER_FACTOR * earlier > factor * usual:
            more = f"{_EARLIER_FACTOR} times the {earlier:.2g} that was usual in an earlier round, and than {more}"
        reasons.append(f"its update has length {length:.2g}, more than {more}")
    return reasons


def shares_kept(
    lengths: Sequence[float], factor: float, *, known: int = 0, earlier: float = 0.0
) -> list[float]:
    """Return the factor that scales each update of a round to a usual length: 1 if it is not long.

    To cut it to ``factor`` times the usual length would leave a flipped update that outweighs all others of a small
    federation, and a factor that lets every honest update pass is not small: sites that have learned all they can move
    little, and one that has not is several times as far (docs/robustness.md has the figures).

    Parameters
    ----------
    factor : float
        How often the lower median of all of them makes a long one; 0 for none.
    known : int
        How many of the first ones were compared before; they get no result.
    earlier : float
        The length that was usual in an earlier round: none of up to that is cut, and none is cut to less.
    """
    if not factor or len(lengths) < ENOUGH:
        return [1.0] * (len(lengths) - known)
    usual = sorted(lengths)[(len(lengths) - 1) // 2]
    longest, kept = max(factor * usual, earlier), max(usual, earlier)
    return [kept / one if 0 < longest < one else 1.0 for one in lengths[known:]]


def _median_of_the_others(ranked: Sequence[float], one: float) -> float:
    """Return the lower median of two or more sorted numbers without one of them."""
    middle = (len(ranked) - 2) // 2
    return ranked[middle + (bisect_left(ranked, one) <= middle)]


def absurd_losses(losses: Sequence[float], classes: int) -> list[str | None]:
    """Return for each site's loss of the same weights why it is absurdly large, or None.

    Parameters
    ----------
    losses : sequence of float
        The sites' mean losses; a single one is accepted.
    classes : int
        How many there are to choose among; a blind guess among them has a loss that counts as usual.
    """
    ranked, reasons = sorted(losses), list[str | None]()
    for loss in losses:
        alone = len(ranked) < 2
        usual = loss if alone else max(_median_of_the_others(ranked, loss), math.log(classes))
        if loss <= _LOSS_FACTOR * usual:
            reasons.append(None)
            continue
        more = f"{_LOSS_FACTOR} times the {usual:.2g} that is usual in this round"
        reasons.append(f"its loss is {loss:.2g}, more than {more}")
    return reasons


def length_of(new: Weights, old: Weights) -> float:
    """Return the Euclidean length of what ``new`` changes; infinite where it exceeds float32."""
    moved = new.read_only
    squares = 0.0
    for name, t in old.read_only.items():
        for after, before in pieces(moved[name], t) if t.is_floating_point() else ():
            change = torch.sub(after, before).reshape(-1).double()
            squares += torch.dot(change, change).item()  # in half the time of a norm in float64
    return math.sqrt(squares)


def weights_length(weights: Weights) -> float:
    """Return the Euclidean length of the floating weights."""
    parts = [
        part.double().square().sum()
        for t in weights.read_only.values()
        if t.is_floating_point()
        for (part,) in pieces(t)
    ]
    return math.sqrt(float(torch.stack(parts).sum()))


@dataclass
class LengthHistory:
    """The update lengths of earlier rounds; kept with a checkpoint.

    Attributes
    ----------
    usual : dict
        By architecture and part, the largest upper median, the (floor(K / 2) + 1)-th smallest of K, of the lengths that
        a round accepted, shortened then or not.
    long : dict of str to int
        Of each site whose update was left out or shortened when it was last compared, the round of that.
    """

    usual: dict[tuple[str, str], float] = field(default_factory=dict)
    long: dict[str, int] = field(default_factory=dict)

    def note(
        self, number: int, usual: Mapping[tuple[str, str], float], compared: Mapping[str, bool]
    ) -> None:
        """Add a round: its upper medians, and for each compared site whether it was too long."""
        for key, length in usual.items():
            if math.isfinite(length):
                self.usual[key] = max(length, self.usual.get(key, 0.0))
        for site, was_long in compared.items():
            if was_long:
                self.long[site] = number
            else:
                self.long.pop(site, None)

    def state(self) -> dict[str, Any]:
        """Return it in a checkpoint's form; nothing where nothing was compared."""
        usual = [[*key, length] for key, length in self.usual.items()]
        return {"usual": usual, "long": dict(self.long)} if usual or self.long else {}

    def put_back(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        self.usual = {(model, part): float(length) for model, part, length in state["usual"]}
        self.long = dict(state["long"])
