"""A federation without processes: its devices work one after the other, each when its reply is asked for."""

from __future__ import annotations

from flwr.serverapp import Grid

WORKS_WHEN_ASKED = "works_when_asked"
"""The attribute by which a grid says so."""


def works_when_asked(grid: Grid) -> bool:
    """Return whether a grid carries a message out when its reply is pulled, in the thread that pulls.

    What it has no reply to then, it never will. Who asks for one reply at a time has one in memory.
    """
    return bool(getattr(grid, WORKS_WHEN_ASKED, False))
