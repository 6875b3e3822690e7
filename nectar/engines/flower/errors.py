"""What keeps a run from being started, or its outcome from being known."""

from common.errors import NectarError


class LaunchError(NectarError):
    """A run could not be started, or nobody says what became of it."""


class CommandRefused(LaunchError):
    """A SuperLink gave an answer, and the answer is no; the sentence is its reason."""
