"""What a method's sites sent, in words: made of what its settings disclose and of the remark they add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from common.code.imports import is_import_path
from common.errors import NectarError
from common.methods import is_foreign, resolve
from common.settings.base import Disclosure, Settings

_DERIVED = {
    "noise": "The {payload} started from noise.",
    "real examples": (
        "The {payload} started from real examples and may resemble them: do not treat them as private."
    ),
    "class means": (
        "The {payload} started from the mean of each of a site's classes: of a class with few examples they show what "
        "these look like."
    ),
}


@dataclass(frozen=True)
class Facts:
    """A method in a report's words.

    Attributes
    ----------
    protected : tuple of str
        What did not leave the sites, in a sentence each.
    sent : tuple of str
        What was sent, and what may be learned from it, in a sentence each.
    carries : str
        What was sent instead of examples or images; empty if these were sent.
    pictures : str
        What the images in the record are.
    """

    display_name: str
    protected: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()
    carries: str = ""
    pictures: str = "synthetic images"

    def including(self, inner: Sequence[Facts]) -> Facts:
        """Return these facts of a method with those of the methods inside it."""
        if not inner:
            return self
        names = ", ".join(one.display_name for one in inner)
        return replace(
            self,
            display_name=f"{self.display_name} ({names})",
            protected=tuple(chain(self.protected, *(one.protected for one in inner))),
            sent=tuple(chain(self.sent, *(one.sent for one in inner))),
        )


def facts_of(method: str, disclosed: Disclosure, settings: Settings | None) -> Facts | None:
    """Return a method's facts, given what its sites sent.

    Parameters
    ----------
    method : str
        A name, or the import path of a Flower strategy or of a user's own method.
    disclosed : Disclosure
        As the record states it.
    settings : Settings or None
        The method's settings in the run, whose remark is the last sentence; None where they cannot be resolved.

    Returns
    -------
    Facts or None
        None for a method that this release does not know.
    """
    try:
        name = display_name(method)
    except (NectarError, KeyError):
        return None
    remark = settings.remark() if settings is not None else ""
    sent = [*_sent(disclosed), remark] if remark else _sent(disclosed)
    stands_for_examples = disclosed.images or bool(disclosed.began_as)
    payload = disclosed.payload
    return Facts(
        name,
        tuple(_protected(disclosed)),
        tuple(sent),
        "" if stands_for_examples else payload,
        payload.removeprefix("weights and ")
        if stands_for_examples
        else f"images that the server made of {payload}",
    )


def display_name(method: str) -> str:
    """Return a method's name as people write it; KeyError or NectarError if there is no such method."""
    parts = resolve(method)
    if is_import_path(method) and not is_foreign(method):
        return parts.name
    named: str = parts.strategy if is_foreign(method) else parts.settings
    return named.rpartition(":")[2].removesuffix("Settings")


def unknown_method(method: str) -> str:
    """Say that nothing is known of a method."""
    return f"The report knows nothing about {method}: what its sites send is a function of private data."


def _protected(disclosed: Disclosure) -> list[str]:
    if disclosed.payload == "nothing" or disclosed.began_as in ("real examples", "class means"):
        return []
    return [f"No training example left a site, only {disclosed.payload}."]


def _sent(disclosed: Disclosure) -> list[str]:
    if disclosed.payload == "nothing":
        return []
    if disclosed.unchanged:
        sentences = ["Real images were sent unchanged: treat them as the sites' data."]
    else:
        payload = disclosed.payload
        protection = (
            "carries noise, which the epsilon stated below covers"
            if disclosed.differentially_private
            else "is a function of private data"
        )
        sentences = [f"What sites sent ({payload}) {protection}."]
        if disclosed.began_as:
            sentences.append(_DERIVED[disclosed.began_as].format(payload=payload))
    if disclosed.labels:
        sentences.append("The classes that a site holds can be read from what it sends.")
    if disclosed.class_counts:
        sentences.append("Each site also sent its number of examples of every class.")
    return sentences
