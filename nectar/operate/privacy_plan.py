"""How much noise an epsilon takes, and how many rounds a budget has left."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from common.privacy.accounting import costs_at_most
from common.privacy.events import Event

#: noise multipliers between which one is looked for, and to which share of itself it is found
_LEAST, _MOST, _CLOSE = 1e-2, 1e6, 1e-3

#: rounds beyond which it makes no difference how many are left
_ENOUGH = 2**20


def noise_for(target: float, delta: float, sample_rate: float = 1.0, steps: int = 1) -> float:
    """Return the least noise multiplier with which a mechanism costs no more than ``target``, to a thousandth above it.

    Parameters
    ----------
    target : float
        The epsilon, above 0.
    delta : float
        Above 0 and below 1.
    sample_rate : float
        Of its Poisson samples; 1: all the data.
    steps : int
        Of all rounds together, 1 or more.

    Raises
    ------
    ValueError
        If one of them is none, or no noise up to a million is enough.
    """
    if not 0 < target < math.inf or not 0 < sample_rate <= 1 or steps < 1:
        raise ValueError(
            f"noise for an epsilon of {target}, sample rate {sample_rate}, {steps} steps: give an epsilon above 0, a "
            "rate above 0 and up to 1, and at least one step"
        )

    def enough(noise: float) -> bool:
        return costs_at_most(target, [Event("plan", noise, sample_rate, steps)], delta)

    high = 1.0
    while not enough(high):
        high *= 2
        if high > _MOST:
            raise ValueError(f"no noise up to {_MOST:g} gives an epsilon of {target}: ask for more")
    low = high / 2
    while low > _LEAST and enough(low):
        low, high = low / 2, low
    while high / low > 1 + _CLOSE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def rounds_left(
    spent: Sequence[Event], per_round: Iterable[Event], budget: float, delta: float
) -> int | None:
    """Return how many more rounds a budget allows; None where a round costs nothing, or they are over a million.

    Parameters
    ----------
    spent : sequence of Event
        What was released before.
    per_round : iterable of Event
        What a round releases.
    budget : float
        The epsilon that all of it may have.
    delta : float
        Above 0 and below 1.
    """
    each = [event for event in per_round if event.releases]

    def fits(rounds: int) -> bool:
        later = [
            Event(e.mechanism, e.noise_multiplier, e.sample_rate, e.steps * rounds, e.adjacency)
            for e in each
        ]
        return costs_at_most(budget, [*spent, *later], delta)

    if not fits(0) or not fits(1):
        return 0
    least, most = 1, 2
    while fits(most):
        least, most = most, 2 * most
        if not each or most > _ENOUGH:
            return None
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if fits(middle) else (least, middle)
    return least
