"""A site's privacy ledger as a table that a person reads: what each run released, and what all of it costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from common.privacy.accounting import epsilon
from common.privacy.events import Event
from common.privacy.ledger import Charge, Lines, merged

_HEADS = ("first", "record", "data", "method", "rounds", "released", "epsilon")


def as_text(lines: Lines, path: Path, delta: float) -> tuple[str, float]:
    """Return a ledger in words, and the epsilon of all that it holds.

    Parameters
    ----------
    delta : float
        Above 0 and below 1.
    """
    if not lines.charges:
        return (
            f"{path}: nothing was charged to this site; runs without noise are not counted (released.jsonl has them).",
            0.0,
        )
    rows = [_row(charges, delta) for charges in _by_run(lines.charges)]
    widths = [max(map(len, column)) for column in zip(_HEADS, *rows, strict=True)]
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (_HEADS, *rows)
    ]
    spent = epsilon(lines.events, delta).value
    return (
        "\n".join(
            [
                *table,
                "",
                f"{len(lines.charges)} charges, all data together: epsilon {_said(spent)} at delta {delta:g}, for one "
                f"{lines.charges[-1].unit} more or less.",
                f"{path}, head {lines.head.sha256[:16]}",
            ]
        ),
        spent,
    )


def _by_run(charges: Sequence[Charge]) -> list[list[Charge]]:
    """Return the charges of each run on each set of data, in the order in which they began."""
    runs: dict[tuple[str, str, str], list[Charge]] = {}
    for charge in charges:
        runs.setdefault((charge.record, charge.data, charge.method), []).append(charge)
    return list(runs.values())


def _row(charges: Sequence[Charge], delta: float) -> tuple[str, ...]:
    first = charges[0]
    events = merged(tuple(event for charge in charges for event in charge.events))
    rounds = {charge.round for charge in charges}
    repeated = "" if len(rounds) == len(charges) else f", {len(charges)} charges"
    released = "; ".join(map(_described, events))
    cost = _said(epsilon(events, delta).value)
    counted = f"{len(rounds)}{repeated}"
    return first.time, first.record, first.data, first.method, counted, released, cost


def _described(event: Event) -> str:
    sampled = "" if event.sample_rate == 1 else f" of a {event.sample_rate:.3g} sample"
    exchanged = ", for an exchange" if event.adjacency == "replace-one" else ""
    return (
        f"{event.steps} x {event.mechanism}{sampled}, noise {event.noise_multiplier:.4g}{exchanged}"
    )


def _said(cost: float) -> str:
    return f"{cost:.3g}" if math.isfinite(cost) else "without bound"
