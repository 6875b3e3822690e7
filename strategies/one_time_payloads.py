"""What each site gets once, and again until it is known to have it."""

from __future__ import annotations

from collections.abc import Mapping

from common.specs.updates import MEMORY_LOST
from strategies.exchange.replies import Outcome


class OneTimePayloads:
    """Keeps the edition that each site has, by the replies that were taken.

    A site that says that it lost its memory is sent the parcel again.

    Attributes
    ----------
    held : mapping of str to int
        The edition by site, which a checkpoint holds.
    """

    def __init__(self, held: Mapping[str, int] | None = None) -> None:
        self.held = dict(held or {})
        self._out: dict[str, int] = {}

    def pending(self, site: str, edition: int) -> bool:
        """Return whether ``site`` is to be sent ``edition`` with this round's instruction, and note that it is."""
        if self.held.get(site) == edition:
            return False
        self._out[site] = edition
        return True

    def confirm(self, outcome: Outcome) -> None:
        """Note what the sites whose replies were taken now have."""
        for site, figures in outcome.accepted.items():
            if site in self._out:
                self.held[site] = self._out[site]
            elif MEMORY_LOST in figures:
                self.held.pop(site, None)
        self._out.clear()
