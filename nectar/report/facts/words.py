"""A method's facts in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

#: gives one of the method's settings by name, None where a run of another release has none
Given = Callable[[str], Any]


@dataclass(frozen=True)
class Facts:
    """A method's facts in words; a file of this package states them as ``facts(disclosed, given)``.

    Parameters
    ----------
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
