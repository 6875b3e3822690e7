"""Errors a user can act on: each is one sentence that says what, where, what is allowed and what to do."""

from __future__ import annotations

#: characters of a reason that another machine had a part in; it is logged, recorded and shown
REASON_LENGTH = 400


class NectarError(Exception):
    """Base of every error that Nectar raises on purpose; the command line prints it and exits with 2.

    Parameters
    ----------
    sentence : str
        What this machine says.
    told : str
        What another machine is told in its place, where the sentence names places of this one.
    """

    def __init__(self, sentence: str, *, told: str = "") -> None:
        super().__init__(sentence)
        self.told = told


class ConfigError(NectarError):
    """A setting that does not exist, has the wrong type or lies out of its range."""


class DataError(NectarError):
    """A data set, a file of one or a partition that cannot be had as asked."""


class RowsError(DataError):
    """A table whose rows do not fit what is asked of them: in a private run only the site itself learns how."""


class PayloadError(NectarError):
    """A payload that is not what the receiver expects; never aggregated, never half-used."""

    def __init__(self, sentence: str) -> None:
        super().__init__(reason(sentence))  # it may quote what came


class FederationError(NectarError):
    """A federation that cannot start or go on: too few nodes, too few valid replies, two sites of one name."""


class DivergedError(FederationError):
    """A round whose new weights are not finite, so that it is not kept."""


def one_line(text: str) -> str:
    """Return what another machine said as one line, without line ends and terminal codes: a log's lines are ours."""
    return "".join(character if character.isprintable() else " " for character in text)


def reason(text: str) -> str:
    """Return what another machine said as one line of at most ``REASON_LENGTH`` characters."""
    line = one_line(text[: REASON_LENGTH + 1])
    return line if len(line) <= REASON_LENGTH else f"{line[: REASON_LENGTH - 1]}…"


def short_reason(error: Exception) -> str:
    """Return an error's text as one short line, or else its type: what a library or a user's own code raised."""
    return " ".join(one_line(str(error)).split())[:200] or type(error).__name__
