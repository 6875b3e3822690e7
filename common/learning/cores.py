"""How many cores a machine has: asked without torch, which takes seconds to import."""

from __future__ import annotations

import os


def machine_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
