"""Methods over seeds, side by side: the plan of the runs, their processes, and the tables.

The package is itself the function ``nectar.compare``, since a module can have but one attribute of a name.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nectar.api import ComparisonResult


class _Compare(ModuleType):
    """Methods over seeds, side by side: ``nectar.compare("feddm", "fedavg", seeds=3)``."""

    def __call__(self, *rows: str, **settings: Any) -> ComparisonResult:
        """Compare ``rows``; see :func:`nectar.api.compare`, which this is."""
        from nectar.api import compare

        return compare(*rows, **settings)


sys.modules[__name__].__class__ = _Compare
