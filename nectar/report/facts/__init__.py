"""What a report says of a method: its name as people write it, and what was private in a run and what was not.

What leaves a device is data, stated by the method's settings and kept by the record; a file here for each method
words it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, cast

from common.errors import ConfigError, NectarError
from common.methods import FOREIGN_CLIENT, METHODS, Method, is_import_path, load, resolve
from common.settings.base import Settings
from common.settings.disclosure import Disclosure

#: gives one of the method's settings by name, None where a run of another release has none
Given = Callable[[str], Any]


@dataclass(frozen=True)
class Facts:
    """A method's facts in words; a file of this package states them as ``facts(disclosed, given)``.

    Parameters
    ----------
    spoken : str
        The method's name.
    protected : tuple of str
        What did not leave the devices, or was not given away, in a sentence each.
    sent : tuple of str
        What left, and what may be learned from it, in a sentence each.
    carries : str
        What travels up in place of images; empty where images do.
    pictures : str
        What the images are, where images do.
    """

    spoken: str
    protected: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()
    carries: str = ""
    pictures: str = "synthetic images"

    def around(self, inner: Sequence[Facts]) -> Facts:
        """Return these facts of a method with those of the methods inside it."""
        if not inner:
            return self
        return replace(
            self,
            spoken=f"{self.spoken} ({', '.join(one.spoken for one in inner)})",
            protected=tuple(chain(self.protected, *(one.protected for one in inner))),
            sent=tuple(chain(self.sent, *(one.sent for one in inner))),
        )


def facts_of(method: str, disclosed: Disclosure, given: Given) -> Facts | None:
    """Return what is known of a method, given what its devices sent.

    Parameters
    ----------
    method : str
        A name, or the import path of a Flower strategy (whose devices are FedAvg's) or of a method of the user's
        own, which may name its facts.
    disclosed : Disclosure
        What left the devices.
    given : callable
        Returns a run's setting of the method by name.

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
    path = "" if parts is None else _path(method, parts)
    if not path:
        return None
    found = load(path)(disclosed, given)
    if not isinstance(found, Facts):
        raise ConfigError(f"{path} must return nectar.report.facts.Facts, not {found!r}.")
    return found


def recorded_disclosure(method: str, given: Given, recorded: Any) -> Disclosure | None:
    """Return what a run's devices sent: as its record states it, else as its settings say today.

    Parameters
    ----------
    method : str
        As for :func:`facts_of`.
    given : callable
        Returns a run's setting of the method by name.
    recorded : Any
        What provenance.json has under ``privacy``; records of earlier releases have nothing.

    Returns
    -------
    Disclosure or None
        None for a method that this release does not know, or that states nothing.
    """
    if (stated := Disclosure.read(recorded)) is not None:
        return stated
    parts = _parts(method)
    if parts is None:
        return None
    cls = cast("type[Settings]", load(parts.settings))
    values = {name: given(name) for name in cls.model_fields}
    # Not validated: they held when the run began, and another release may have other bounds.
    settings = cls.model_construct(**{k: v for k, v in values.items() if v is not None})
    return settings.disclosure()


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


def _path(method: str, parts: Method) -> str:
    """Return the import path of a method's facts; empty if it has none."""
    if method in METHODS:
        return f"nectar.report.facts.{method}:facts"
    flower = parts.strategy == method
    return f"nectar.report.facts.{FOREIGN_CLIENT}:facts" if flower else parts.facts
