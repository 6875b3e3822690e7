"""Errors a user can act on: each is one sentence: what, where, what is allowed and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: characters of a reason that another machine had a part in; it is logged, recorded and shown
REASON_LENGTH = 400


class NectarError(Exception):
    """Base of every error that Nectar raises on purpose; the command line prints it and exits with 2.

    Parameters
    ----------
    sentence : str
        What this machine says.
    reported : str
        The sentence for another machine, where the first one names places of this one.
    """

    def __init__(self, sentence: str, *, reported: str = "") -> None:
        super().__init__(sentence)
        self.reported = reported


class ConfigError(NectarError):
    """A setting that does not exist, has the wrong type or is out of its range."""


class DataError(NectarError):
    """A data set, a file of one or a partition that cannot be had as asked."""


class RowsError(DataError):
    """A table whose rows do not fit the run: in a private run only the site itself learns how."""


class PayloadError(NectarError):
    """A payload that is not what the receiver expects; never aggregated, never half-used."""

    def __init__(self, sentence: str) -> None:
        super().__init__(reason(sentence))  # it may quote what came


class FederationError(NectarError):
    """A federation that cannot start or go on: too few nodes, too few valid replies, two sites of one name."""


class DivergedError(FederationError):
    """A round whose new weights are not finite, so that it is not kept."""


def one_line(text: str) -> str:
    """Return another machine's text as one line, without line ends and terminal codes: a log's lines are ours."""
    return "".join(character if character.isprintable() else " " for character in text)


def reason(text: str) -> str:
    """Return another machine's text as one line of at most ``REASON_LENGTH`` characters."""
    line = one_line(text[: REASON_LENGTH + 1])
    return line if len(line) <= REASON_LENGTH else f"{line[: REASON_LENGTH - 1]}…"


def short_reason(error: Exception) -> str:
    """Return an error's text as one short line, or else its type: what a library or a user's own code raised."""
    return " ".join(one_line(str(error)).split())[:200] or type(error).__name__


# ---- nearest words -------------------------------------------------------------------------------
# The most likely meaning of an unknown word.


def fold(word: str) -> str:
    """Return a word without what does not count between spellings: case, hyphens and underscores."""
    return word.lower().replace("-", "").replace("_", "")


def nearest(word: str, choices: Iterable[str], likeness: float = 0.5) -> str:
    """Return the choice most like a word, if any has that likeness to it, by difflib's ratio; else the empty text."""
    return next(iter(_close(word, choices, likeness)), "")


def near(word: str, choices: Iterable[str], *, several: bool = False) -> str:
    """Return in words which choice is nearest, with ``several`` up to three nearly as like it; nothing if none is."""
    found = _close(word, choices, 0.6)[:3] if several else _close(word, choices, 0.5)[:1]
    if len(found) < 2:
        return f", the nearest is {found[0]}" if found else ""
    return f", the nearest are {', '.join(found[:-1])} and {found[-1]}"


def _close(word: str, choices: Iterable[str], likeness: float) -> list[str]:
    """Return up to three choices that are like a word, best first, and nearly as like it as the best one."""
    by_letter = sorted(choices, key=lambda one: difflib.SequenceMatcher(None, one, word).ratio())
    spelt, word = {fold(choice): choice for choice in by_letter}, fold(word)
    found = difflib.get_close_matches(word, spelt, n=3, cutoff=likeness)
    ratios = [difflib.SequenceMatcher(None, choice, word).ratio() for choice in found]
    return [spelt[one] for one, like in zip(found, ratios, strict=True) if like > ratios[0] - 0.04]
