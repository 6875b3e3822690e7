"""The number of rounds left in a budget, and a ledger as a table."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from pathlib import Path

from common.privacy.accounting import costs_at_most, epsilon
from common.privacy.events import Event
from common.privacy.ledger import Charge, Lines, merge_events
from nectar.text import aligned

#: rounds beyond which it makes no difference how many are left
_ENOUGH = 2**20


def rounds_left(
    spent: Sequence[Event], per_round: Iterable[Event], budget: float, delta: float
) -> int | None:
    """Return how many more rounds a budget allows; None if a round costs nothing, or they are over a million.

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

    most = 1
    while fits(most):
        if not each or most > _ENOUGH:
            return None
        most *= 2
    return max(0, bisect_left(range(most), True, lo=most // 2, key=lambda n: not fits(n)) - 1)


# ---- ledger table --------------------------------------------------------------------------------
# A site's privacy ledger as a table that a person reads: what each run released, and what all of it costs.

_HEADS = ("first", "record", "data", "method", "rounds", "released", "epsilon")


def as_text(lines: Lines, path: Path, delta: float) -> tuple[str, float]:
    """Return a ledger as text, and its total epsilon.

    Parameters
    ----------
    delta : float
        Above 0 and below 1.
    """
    if not lines.charges:
        return (
            f"{path}: no charges; runs without noise are not counted (released.jsonl has them).",
            0.0,
        )
    rows = [_row(charges, delta) for charges in _by_run(lines.charges)]
    spent = epsilon(lines.events, delta).value
    return (
        "\n".join(
            [
                aligned([_HEADS, *rows], right=False),
                "",
                f"{len(lines.charges)} charges, all data together: epsilon {cost_text(spent)} at delta {delta:g}, for "
                f"one {lines.charges[-1].unit} added or removed.",
                f"{path}, head {lines.head.sha256[:16]}",
            ]
        ),
        spent,
    )


def _by_run(charges: Sequence[Charge]) -> list[list[Charge]]:
    """Return the charges of each run on each data set, in the order of their first charges."""
    runs: dict[tuple[str, str, str], list[Charge]] = {}
    for charge in charges:
        runs.setdefault((charge.record, charge.data, charge.method), []).append(charge)
    return list(runs.values())


def _row(charges: Sequence[Charge], delta: float) -> tuple[str, ...]:
    first = charges[0]
    events = merge_events(tuple(event for charge in charges for event in charge.events))
    rounds = {charge.round for charge in charges}
    repeated = "" if len(rounds) == len(charges) else f", {len(charges)} charges"
    released = "; ".join(map(_described, events))
    cost = cost_text(epsilon(events, delta).value)
    counted = f"{len(rounds)}{repeated}"
    return first.time, first.record, first.data, first.method, counted, released, cost


def _described(event: Event) -> str:
    sampled = "" if event.sample_rate == 1 else f" of a {event.sample_rate:.3g} sample"
    exchanged = ", for an exchange" if event.adjacency == "replace-one" else ""
    return (
        f"{event.steps} x {event.mechanism}{sampled}, noise {event.noise_multiplier:.4g}{exchanged}"
    )


def cost_text(cost: float) -> str:
    """Return an epsilon in three digits."""
    return f"{cost:.3g}" if math.isfinite(cost) else "without bound"
