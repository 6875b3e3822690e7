"""Errors that prevent a run from starting, or its outcome from being known."""

from common.errors import NectarError


class LaunchError(NectarError):
    """A run could not be started, or its outcome is unknown."""


class CommandRefused(LaunchError):
    """A SuperLink refused a request; the message is its reason."""
