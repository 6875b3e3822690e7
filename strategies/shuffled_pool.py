"""The images of all sites, mixed and cut into shares: who has sent some, and whose share is which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from common.learning.run import Run
from common.sites import site_order
from common.specs.fedssyn import Images, images_of, values_of

_IMAGES, _LABELS, _CUTS, _OWNERS = "images", "labels", "cuts", "owners"


class ShuffledPool:
    """Gathers the sites' images until it is closed; then gives every site its share.

    Nothing of the order in which images came, or of who sent which, is kept after the shuffling.

    Attributes
    ----------
    sent : dict of str to Images
        What each site has sent, until the pool is closed; afterwards empty.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.sent: dict[str, Images] = {}
        self._mixed: Images | None = None
        self._cuts: list[int] = []
        self._owners: dict[str, int] = {}

    @property
    def closed(self) -> bool:
        """Whether the images have been shuffled."""
        return self._mixed is not None

    def add(self, site: str, images: Images) -> None:
        """Add a site's images, once."""
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
            If no site has sent any.
        """
        if not self.sent:
            raise ValueError("no site has sent images")
        union = self.union
        order = torch.randperm(len(union.labels), generator=generator)
        self._mixed = self._at(union, order)
        self._cuts = [len(share) for share in torch.tensor_split(order, parts)]
        self._owners = {name: i for i, name in enumerate(sites)}
        self.sent = {}

    @property
    def union(self) -> Images:
        """All images in site order, until the pool is closed."""
        each = [self.sent[name] for name in sorted(self.sent, key=site_order)]
        values = torch.cat([values_of(images) for images in each])
        return images_of(self._run, values, torch.cat([images.labels for images in each]))

    @property
    def everything(self) -> Images:
        """All images, once the pool is closed."""
        assert self._mixed is not None
        return self._mixed

    def share_of(self, site: str) -> Images:
        """Return a site's share; a late one gets the next free share, or else one that another site has."""
        index = self._owners.setdefault(site, len(self._owners)) % len(self._cuts)
        start = sum(self._cuts[:index])
        return self._at(self.everything, torch.arange(start, start + self._cuts[index]))

    def _at(self, images: Images, positions: torch.Tensor) -> Images:
        return images_of(self._run, values_of(images)[positions], images.labels[positions])

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state for a checkpoint."""
        held = self.sent if self._mixed is None else {"": self._mixed}
        return {
            _IMAGES: {name: values_of(images) for name, images in held.items()},
            _LABELS: {name: images.labels for name, images in held.items()},
            _CUTS: list(self._cuts),
            _OWNERS: dict(self._owners),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state."""
        labels = state[_LABELS]
        images = {n: images_of(self._run, v, labels[n]) for n, v in state[_IMAGES].items()}
        self._cuts, self._owners = list(state[_CUTS]), dict(state[_OWNERS])
        self._mixed = images.pop("") if self._cuts else None
        self.sent = images
