"""What is said once a minute while runs go on: which ones, how far, and for how long still."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nectar.words import spoken

#: runs that are named; of the others their number is told
_NAMED = 4


@dataclass(frozen=True)
class AtWork:
    """A run that goes on.

    Parameters
    ----------
    before, reached, rounds : int
        Rounds that were done when it was begun here, that are done now, and that there are to be.
    """

    name: str
    before: int
    reached: int
    rounds: int

    @property
    def made(self) -> float:
        """The part of the run that was carried out here, from 0 to 1."""
        return max(0, self.reached - self.before) / max(1, self.rounds)

    @property
    def left(self) -> float:
        """The part that is still to be carried out, from 0 to 1."""
        return max(0, self.rounds - self.reached) / max(1, self.rounds)


def sentence(
    runs: Sequence[AtWork], *, ended: int, waiting: int, done: int, total: int, seconds: float
) -> str:
    """Say which runs are at work and when all will be over, as if each took as long as those did until now.

    Parameters
    ----------
    ended, waiting : int
        Runs that ended here, and that are not begun.
    done, total : int
        Runs that are there, and that there are to be.
    seconds : float
        Since the first one was begun here.
    """
    named = [f"{one.name} (round {max(0, one.reached)} of {one.rounds})" for one in runs[:_NAMED]]
    if len(runs) > _NAMED:
        named.append(f"{len(runs) - _NAMED} more")
    made = ended + sum(one.made for one in runs)
    left = waiting + sum(one.left for one in runs)
    until = f", about {spoken(seconds * left / made)} more" if made else ""
    return f"At work: {'; '.join(named) or 'nothing'}. {done} of {total} runs are done{until}."
