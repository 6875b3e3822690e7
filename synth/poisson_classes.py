"""Batches in which each sample of a class is with a chance of its own: what subsampling's privacy asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PoissonClasses:
    """A plan that draws a Poisson sample of every class, all classes at once.

    A batch's size is itself random, and a class may have none in it. What a mean divides by is the
    expected size, which is a function of the counts that the plan was given and of nothing else.

    Attributes
    ----------
    classes
        The classes in ascending order, int64 [C].
    rates
        q_c = min(1, B / n_c), float64 [C].
    expected
        q_c n_c, float64 [C].
    """

    classes: Tensor
    rates: Tensor
    expected: Tensor
    _rank: Tensor

    @classmethod
    def plan(cls, labels: Tensor, batch: int, counts: Tensor | None = None) -> PoissonClasses:
        """Return the plan for samples with these ``labels``.

        Parameters
        ----------
        labels
            The samples' classes, int64 [n]; their device is the plan's.
        batch
            B, the expected size of a class in a batch; a smaller class gives all it has.
        counts
            n_c as they may be known, [C] in the order of the classes, such as counts with
            noise; one below 1 is taken for 1. By default the true ones, which are public then.

        Raises
        ------
        ValueError
            There are no labels, no batch, or not as many counts as classes.
        """
        if labels.ndim != 1 or labels.numel() == 0 or batch < 1:
            raise ValueError(
                f"batches of {batch} of labels {tuple(labels.shape)}: give a list of at least one, "
                "and a batch of at least 1"
            )
        classes, rank, held = torch.unique(labels, return_inverse=True, return_counts=True)
        if counts is not None and counts.shape != held.shape:
            raise ValueError(f"{tuple(counts.shape)} counts do not go with {len(held)} classes")
        known = (held if counts is None else counts.to(labels.device)).double().clamp_min(1)
        rates = (batch / known).clamp(max=1)
        return cls(classes, rates, rates * known, rank)

    def draw(self, sample: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Return a batch's indices into the labels, int64 [b], class by class, and their classes' ranks [b].

        Parameters
        ----------
        sample
            chances, float64 [n] in the order of the labels -> the positions that were drawn,
            each by itself with its chance, int64 [b], ascending, on the plan's device.
        """
        drawn = sample(self.rates[self._rank])
        by_class = drawn[self._rank[drawn].argsort(stable=True)]
        return by_class, self._rank[by_class]

    @property
    def rate(self) -> float:
        """The largest chance of a sample to be drawn.

        Classes are disjoint, so that a sample's privacy is that of its own class: no worse than of this one.
        """
        return float(self.rates.max())
