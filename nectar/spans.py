"""Spans of time in words."""

from __future__ import annotations


def spoken(seconds: float) -> str:
    """Return a span as a person says it: ``0.3 s``, ``42 s``, ``3 min 20 s``, ``12 h 36 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{round(whole / 60)} min"
    hours, minutes = divmod(round(whole / 60), 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
