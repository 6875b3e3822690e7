"""Federated learning from distilled data.

``nectar.run`` runs a federation in this process, ``nectar.compare`` sets methods side by side, ``nectar.open`` reads
the record of a run; the command ``nectar`` does these and more. Nothing heavy is imported until one of them is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nectar.api import compare as compare
    from nectar.api import open_record as open
    from nectar.api import run as run

__all__ = ["compare", "open", "run"]

_NAMES = {"compare": "compare", "open": "open_record", "run": "run"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nectar.own_packages import hidden

    if sentence := hidden():
        raise ImportError(sentence)
    return getattr(importlib.import_module("nectar.api"), _NAMES[name])


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
