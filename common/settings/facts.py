"""What a method's report says of it: its name as people write it, and what was private in a run and what was not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: gives one of the method's settings by name, None where a run of another release has none
Given = Callable[[str], Any]


@dataclass(frozen=True)
class Facts:
    """Facts that follow from a method and its settings; a settings module states them as ``facts(given)``.

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
