"""What a run's sites have spent of their privacy, as a round's line tells it."""

from __future__ import annotations

import math
from collections.abc import Container
from functools import lru_cache
from typing import Any

from common.privacy.accounting import epsilon
from common.privacy.events import UNIT, Event
from strategies.exchange.spending import Spending

#: places of the PRV accountant's grids that a round waits for, of all sites together: half a second of a core
_PLACES = 2**19

#: what a kind of event costs beside them, in the same measure: 64 kinds of each of 12 sites are another second; each
#: site may have two whatever the others have
_PLACES_A_KIND = 2**9


def lines_of(
    spending: Spending, delta: float, sites: Container[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Return for each site, or for those of ``sites``, what it has spent in this run, as plain data.

    ``epsilon`` is None where there is no bound, where the site keeps its events to itself, and where it tells of so
    many kinds of them that the round would wait. Sites that tell of the same events are one computation; the others
    have equal shares of the time, and RDP's epsilon where PRV's would take more.
    """
    told = {s: each for s, each in spending.events.items() if sites is None or s in sites}
    share = _PLACES // max(1, len(set(told.values())))
    return {
        site: {
            "epsilon": _finite(_epsilon(events, delta, share)) if events else None,
            "delta": delta,
            "unit": UNIT,
            "seeded": spending.seeded[site],
            "events": [event.to_dict() for event in events],
        }
        for site, events in told.items()
    }


@lru_cache(maxsize=1024)
def _epsilon(events: tuple[Event, ...], delta: float, places: int) -> float:
    """Return it, by what can be computed within that many places; infinite where nothing can."""
    if len(events) > max(2, places // _PLACES_A_KIND):
        return math.inf
    return epsilon(events, delta, most_places=places).value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
