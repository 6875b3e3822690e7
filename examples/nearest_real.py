"""Whose images do others look like: a site's real ones, or as many real ones of the same class that it has not?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from common.draws.seeding import generator

#: images [n, 1, H, W] and their classes, int64 [n]
Held = tuple[Tensor, Tensor]
LEAST = 10
"""Of classes of which a site has fewer images, none are held against its own."""


@dataclass(frozen=True)
class Real:
    """The real digits: of each site, and those that no site has, values 0 to 1."""

    sites: dict[str, Held]
    test: Held

    def has(self, site: str, labels: Tensor) -> Tensor:
        """Return for each of ``labels`` whether the site has an image of that class."""
        return torch.isin(labels, self.sites[site][1])

    def everyone(self) -> Held:
        """Return all sites' images and classes."""
        images, labels = zip(*self.sites.values(), strict=True)
        return torch.cat(images), torch.cat(labels)

    def inside_and_outside(self, site: str, digit: int) -> tuple[Tensor, Tensor] | None:
        """Return equally many images of a class from the site and from elsewhere; None if there are too few."""
        own = of_class(self.sites[site], digit)
        elsewhere = [of_class(held, digit) for name, held in self.sites.items() if name != site]
        others = torch.cat([*elsewhere, of_class(self.test, digit)])
        count = min(len(own), len(others))
        if count < LEAST:
            return None
        draws = generator(0, "control", site, digit)
        return _some(own, count, draws), _some(others, count, draws)


def of_class(held: Held, digit: int) -> Tensor:
    """Return the images of a class."""
    images, labels = held
    return images[labels == digit]


def _some(images: Tensor, count: int, draws: torch.Generator) -> Tensor:
    return images[torch.randperm(len(images), generator=draws)[:count]]


@dataclass(frozen=True)
class Nearness:
    """Distance of n images from the nearest one of a site's and of as many others, float [n] each."""

    own: Tensor
    other: Tensor

    @property
    def nearer(self) -> float:
        """The share that is nearer to the site's; a tie counts half."""
        return ((self.own < self.other) + 0.5 * (self.own == self.other)).mean().item()


def distances(images: Tensor, among: Tensor) -> Tensor:
    """Return the root mean squared difference of each image and each of ``among``, float [n, m]."""
    exact = "donot_use_mm_for_euclid_dist"
    return torch.cdist(images.flatten(1), among.flatten(1), compute_mode=exact) / (
        images[0].numel() ** 0.5
    )


def nearness(made: dict[str, Held], real: Real) -> Nearness:
    """Hold all sites' images of the classes that these have against the real ones."""
    own, other = [], []
    for site, (images, labels) in made.items():
        for digit in labels.unique().tolist():
            both = real.inside_and_outside(site, digit)
            if both is not None:
                of_digit = images[labels == digit]
                own.append(distances(of_digit, both[0]).amin(1))
                other.append(distances(of_digit, both[1]).amin(1))
    return Nearness(torch.cat(own), torch.cat(other))


def real_nearness(real: Real) -> Nearness:
    """Hold the sites' real images against the others there, and against as many elsewhere."""
    own, other = [], []
    for site, (_, labels) in real.sites.items():
        for digit in labels.unique().tolist():
            both = real.inside_and_outside(site, digit)
            if both is not None:
                among = distances(both[0], both[0])
                own.append(among.fill_diagonal_(float("inf")).amin(1))
                # one less: an image is not held against itself
                other.append(distances(both[0], both[1][1:]).amin(1))
    return Nearness(torch.cat(own), torch.cat(other))
