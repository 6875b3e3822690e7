"""How far a long computation is: steps done of steps to do, for whoever watches. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Watcher = Callable[[str, int, int], None]
"""Told (where, steps done, steps to do) ahead of each step; where: empty for this process, else another one's name."""

_watchers: list[Watcher] = []


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Have ``watcher`` told of each step within, and nobody else; what it raises ends the computation."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def tell(where: str, done: int, steps: int) -> None:
    """Tell the watcher, if there is one, how far a computation is."""
    if _watchers:
        _watchers[-1](where, done, steps)


def counted(steps: int, before_step: Callable[[], None] | None = None) -> Callable[[], None]:
    """Return what is called ahead of each of so many steps: it calls ``before_step`` and tells the watcher."""
    done = 0

    def ahead() -> None:
        nonlocal done
        if before_step is not None:
            before_step()
        tell("", done, steps)
        done += 1

    return ahead
