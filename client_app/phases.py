"""How a client's method becomes a phase that the server can ask for by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from common.learning.run import Run
from common.wire.codec import Spec

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Phase:
    """A phase of a client: its name, what comes with it, and the method that runs it."""

    name: str
    takes: Callable[[Run], Spec]
    method: str


def the_weights(run: Run) -> Spec:
    """Say that a phase takes the weights of the run's model."""
    return run.spec


def phase(name: str, takes: Callable[[Run], Spec] = the_weights) -> Callable[[F], F]:
    """Mark a method of a DeviceClient as the phase ``name``: from a decoded payload to the payload that leaves.

    ``takes`` says what comes with the instruction, the weights of the run's model where nothing else is said.
    """

    def mark(function: F) -> F:
        function.__dict__["nectar_phase"] = Phase(name, takes, function.__name__)
        return function

    return mark


@cache
def phases_of(cls: type) -> Mapping[str, Phase]:
    """Return the phases of a client class by name; a subclass's method of the same phase takes its parent's place."""
    phases: dict[str, Phase] = {}
    for base in reversed(cls.__mro__):
        for value in vars(base).values():
            marked = getattr(value, "nectar_phase", None)
            if isinstance(marked, Phase):
                phases[marked.name] = marked
    return phases
