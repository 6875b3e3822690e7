"""Whether the packages that Nectar is made of are its own: a user's folder may have the name of one."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("client_app", "common", "server_app", "strategies", "synth")


def hidden() -> str:
    """Return a sentence about what would be imported in place of one of Nectar's packages; empty if nothing is.

    It imports nothing, so that it can be asked before anything else.
    """
    home = Path(__file__).resolve().parents[1]
    for name in PACKAGES:
        found = _place(name)
        if found is not None and found != home / name:
            return (
                f"{found} would be imported in place of Nectar's own package `{name}`: rename it, or take "
                f"{found.parent} off PYTHONPATH and start from another folder."
            )
    return ""


def _place(name: str) -> Path | None:
    """Return the folder or file that a top-level name is, or would be, imported from; None if it has none."""
    try:
        spec = find_spec(name)
    except ValueError:  # imported already, by other means than a file
        return None
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin).resolve()
    return origin.parent if origin.stem == "__init__" else origin
