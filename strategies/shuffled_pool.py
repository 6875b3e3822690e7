"""The images of all sites, mixed and cut into shares: who has sent some, and whose share is which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from common.sites import site_order
from common.wire.pixels import Pixels
from synth.shuffling import equal_shares

_IMAGES, _LABELS, _CUTS, _OWNERS = "images", "labels", "cuts", "owners"


class ShuffledPool:
    """Gathers the sites' images until it is closed; then gives every site its share.

    Nothing of the order in which images came, or of who sent which, is kept after the shuffling.

    Attributes
    ----------
    sent : dict of str to Pixels
        What each site has sent, until the pool is closed; afterwards empty.
    """

    def __init__(self) -> None:
        self.sent: dict[str, Pixels] = {}
        self._mixed: Pixels | None = None
        self._cuts: list[int] = []
        self._owners: dict[str, int] = {}

    @property
    def closed(self) -> bool:
        """Whether the images have been shuffled."""
        return self._mixed is not None

    def add(self, site: str, images: Pixels) -> None:
        """Take a site's images, once."""
        self.sent.setdefault(site, images)

    def close(self, sites: Iterable[str], parts: int, generator: torch.Generator) -> None:
        """Mix all images and cut them into ``parts``; ``sites``, in site order, get the first ones.

        Parameters
        ----------
        sites : iterable of str
            The sites that there are, also those that sent nothing.
        parts : int
            K, at least as many.
        generator : torch.Generator
            Draws the permutation.

        Raises
        ------
        ValueError
            If nobody has sent any.
        """
        if not self.sent:
            raise ValueError("no site has sent images")
        each = [self.sent[name] for name in sorted(self.sent, key=site_order)]
        values, labels = torch.cat([e.values for e in each]), torch.cat([e.labels for e in each])
        shares = equal_shares(len(labels), parts, generator)
        order = torch.cat(shares)
        self._mixed = Pixels(values[order], labels[order], each[0].mean, each[0].std)
        self._cuts = [len(share) for share in shares]
        self._owners = {name: i for i, name in enumerate(sites)}
        self.sent = {}

    @property
    def everything(self) -> Pixels:
        """All images, once the pool is closed."""
        assert self._mixed is not None
        return self._mixed

    def share_of(self, site: str) -> Pixels:
        """Return a site's share; one that joined late has the next that is nobody's, or else one that somebody has."""
        index = self._owners.setdefault(site, len(self._owners)) % len(self._cuts)
        start = sum(self._cuts[:index])
        return self.everything.at(torch.arange(start, start + self._cuts[index]))

    def state_dict(self) -> Mapping[str, Any]:
        """Return what a checkpoint holds of it."""
        images = self.sent if self._mixed is None else {"": self._mixed}
        return {
            _IMAGES: {name: pixels.values for name, pixels in images.items()},
            _LABELS: {name: pixels.labels for name, pixels in images.items()},
            _CUTS: list(self._cuts),
            _OWNERS: dict(self._owners),
        }

    def load_state_dict(
        self, state: Mapping[str, Any], mean: tuple[float, ...], std: tuple[float, ...]
    ) -> None:
        """Take it back; ``mean`` and ``std`` are the data set's."""
        labels = state[_LABELS]
        images = {n: Pixels(v, labels[n], mean, std) for n, v in state[_IMAGES].items()}
        self._cuts, self._owners = list(state[_CUTS]), dict(state[_OWNERS])
        self._mixed = images.pop("") if self._cuts else None
        self.sent = images
