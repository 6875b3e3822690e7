"""What a report says of a method: its name as people write it, and what was private in a run and what was not.

What leaves a device is data, stated by the method's settings and kept by the record. ``plain`` words it for the
methods of which there is one thing to say; the others have a file each.
"""

from __future__ import annotations

from common.errors import ConfigError, NectarError
from common.methods import FOREIGN_CLIENT, METHODS, Method, is_import_path, load, resolve
from common.settings.disclosure import Disclosure
from nectar.report.facts.plain import PLAIN
from nectar.report.facts.words import Facts, Given

__all__ = ["Facts", "Given", "facts_of", "unknown"]


def facts_of(method: str, disclosed: Disclosure, given: Given) -> Facts | None:
    """Return what is known of a method, given what its devices sent.

    Parameters
    ----------
    method : str
        A name, or the import path of a Flower strategy (whose devices are FedAvg's) or of a method of the user's
        own, which may name its facts.

    Returns
    -------
    Facts or None
        None for a method that this release does not know, or that names no facts.

    Raises
    ------
    ConfigError
        If a user's own method names facts that cannot be imported, or are none.
    """
    parts = _parts(method)
    if parts is None:
        return None
    name = FOREIGN_CLIENT if parts.strategy == method else method
    if name in PLAIN:
        return PLAIN[name]
    path = f"nectar.report.facts.{name}:facts" if name in METHODS else parts.facts
    if not path:
        return None
    found = load(path)(disclosed, given)
    if not isinstance(found, Facts):
        raise ConfigError(f"{path} must return nectar.report.facts.Facts, not {found!r}.")
    return found


def unknown(method: str) -> str:
    """Say that nothing is known of a method."""
    return f"The report knows no facts about {method}: what its devices send is a function of private data."


def _parts(method: str) -> Method | None:
    """Return a method's parts, or None for one that is not to be found here."""
    if method not in METHODS and not is_import_path(method):
        return None
    try:
        return resolve(method)
    except NectarError:
        return None
