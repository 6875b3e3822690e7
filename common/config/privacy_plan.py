"""How much noise an epsilon takes: of a mechanism, and of a run whose settings say what its sites release."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from common.config.schema import Sections
from common.errors import ConfigError
from common.privacy.accounting import costs_at_most, epsilon
from common.privacy.events import Event
from common.settings.sections import PrivacySettings

#: noise multipliers between which one is looked for, and to which share of itself it is found
_LEAST, _MOST, _CLOSE = 1e-2, 1e6, 1e-3


#: more examples than any batch has, by which it is seen whether a method's steps follow their number
_MANY = 2**50

#: counts of steps above the smallest site's that are looked at
_NEXT = 4


@lru_cache(maxsize=256)
def noise_for(target: float, delta: float, sample_rate: float = 1.0, steps: int = 1) -> float:
    """Return the least noise multiplier with which a mechanism costs no more than ``target``, to a thousandth above it.

    The target is an epsilon above 0, delta between 0 and 1, the rate that of Poisson samples (1: all the data), and
    the steps are of all rounds together; ValueError if there is no step.
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


def planned_privacy(read: Sections, *, begins: bool) -> PrivacySettings:
    """Return the run's privacy settings with the noise with which its rounds cost a site ``privacy.epsilon``."""
    privacy, held = read.shared.privacy, read.shared.data.site_holdout
    method, settings, rounds = read.run.method, read.method, read.run.rounds
    asked = f"privacy.epsilon={privacy.epsilon:g}"
    released = settings.private_steps(privacy.examples or 1, held)
    follows_examples = any(settings.private_steps(n, held) != released for n in (1, _MANY))
    if follows_examples and not privacy.examples:
        raise ConfigError(
            f"{asked} needs privacy.examples: with privacy.counts=public the size of the smallest site, else the "
            "number that every site is taken to have."
        )
    if released is None:
        raise ConfigError(
            f"{asked} cannot be planned under method={method}, whose sites release what its settings alone do not say: "
            "set privacy.noise_multiplier (`nectar privacy plan --epsilon E --sample-rate Q --steps S` says which)."
        )
    plans = [released]
    if follows_examples and privacy.counts == "public":
        plans = _plans(lambda examples: settings.private_steps(examples, held), privacy.examples)
    if privacy.active and not begins:
        each = [[Event("plan", privacy.noise_multiplier, q, n * rounds)] for q, n in plans]
        if not all(costs_at_most(privacy.epsilon, events, privacy.delta) for events in each):
            most = max(epsilon(events, privacy.delta).value for events in each)
            raise ConfigError(
                f"{asked} was planned for fewer rounds: {rounds} with this noise cost {most:.3g}. Leave rounds as they "
                "were, or begin another run."
            )
        return privacy
    try:
        noise = max(noise_for(privacy.epsilon, privacy.delta, q, n * rounds) for q, n in plans)
    except ValueError as error:
        raise ConfigError(f"{asked} cannot be had: {error}.") from None
    planned = privacy.model_copy(update={"noise_multiplier": float(f"{noise:.6g}")})
    if privacy.active and privacy != planned:  # what `nectar config` and a record print has both
        raise ConfigError(
            "privacy.epsilon and privacy.noise_multiplier both say how much noise there is, and "
            f"{noise:.6g} is planned: leave one out."
        )
    return planned


def _plans(of: Callable[[int], tuple[float, int] | None], examples: int) -> list[tuple[float, int]]:
    """Return the plans among which the dearest is of sites that have so many examples or more.

    A larger site's rate is lower, but at the number from which it takes a step more it can cost more: just above a
    batch, nearly all of its examples are in each of the steps. So that of the fewest, and of the next counts of steps.
    """
    found = [of(examples)]
    for _ in range(_NEXT):
        last = found[-1]
        low, high = examples, 2 * examples + 1
        while (plan := of(high)) and last and plan[1] <= last[1] and high < _MANY**2:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            plan = of(middle)
            low, high = (middle, high) if plan and last and plan[1] <= last[1] else (low, middle)
        examples = high
        found.append(of(high))
    return [plan for plan in found if plan]
