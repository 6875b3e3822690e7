"""A site's privacy ledger: whether it can be relied on, and what it says has been spent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common.privacy.accounting import epsilon
from common.privacy.ledger import Head, Ledger, LedgerError
from nectar.operate.doctor.check import Check

_ABOUT = "privacy"


def standing(state: Path, node: Mapping[str, Any], delta: float) -> Iterator[Check]:
    """Look into the ledger of a state directory.

    Parameters
    ----------
    node : mapping
        The site's node config, whose delta and budget hold where it names them.
    delta : float
        At which its epsilon is told where it names none.
    """
    delta = _number(node.get("privacy-delta"), below=1.0) or delta
    budget = _number(node.get("privacy-epsilon"))
    try:
        lines = Ledger(state).read()
    except LedgerError as error:
        yield Check(_ABOUT, "fail", str(error))
        return
    if lines.head == Head():
        yield Check(_ABOUT, "ok", "nothing was released with noise: the ledger is empty")
        return
    spent = epsilon(lines.events, delta).value
    said = f"{lines.head.length} charges, epsilon {spent:.3g} at delta {delta:g}"
    if budget is not None and spent > budget:
        yield Check(_ABOUT, "warn", f"{said}, beyond the budget of {budget:g}: nothing is left")
    else:
        yield Check(_ABOUT, "ok", f"{said}; `nectar privacy {state}` says on what")


def _number(given: object, below: float = math.inf) -> float | None:
    """Return what may be an epsilon or a delta; of anything else the check of the node config says what is wrong."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < below:
        return None
    return float(given)
