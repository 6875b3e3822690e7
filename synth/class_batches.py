"""Batches of so many samples of every class, drawn for all classes at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ClassBatches:
    """A plan that draws, class after class, a set number of samples without replacement.

    Only the random order changes from draw to draw; what place of a batch belongs to which class
    never does. So the class means of a batch's rows X are one product ``averages @ X``, the same
    sum in the same order on every device.

    Attributes
    ----------
    classes
        The classes in ascending order, int64 [C].
    slices
        The places of each class in a drawn batch, C slices one after the other.
    averages
        Row c holds 1/b_c at the places of class c and 0 elsewhere, [C, b].
    """

    classes: Tensor
    slices: tuple[slice, ...]
    averages: Tensor
    _by_class: Tensor
    _rank: Tensor
    _picks: Tensor

    @classmethod
    def plan(
        cls,
        labels: Tensor,
        size: int = 0,
        *,
        dtype: torch.dtype | None = None,
    ) -> ClassBatches:
        """Return the plan for samples with these ``labels``.

        Parameters
        ----------
        labels
            The samples' classes, int64 [n]; their device is the plan's.
        size
            Samples a class in a batch; a class with fewer gives all it has. 0 stands for all.
        dtype
            The type of ``averages``; by default torch's default type.

        Raises
        ------
        ValueError
            There are no labels, or ``size`` is negative.
        """
        if labels.ndim != 1 or labels.numel() == 0:
            raise ValueError(f"labels must be a list of at least one, not {tuple(labels.shape)}")
        if size < 0:
            raise ValueError(f"a batch cannot hold {size} samples a class: give 0 (all) or more")
        classes, rank, counts = torch.unique(labels, return_inverse=True, return_counts=True)
        by_class = rank.argsort(stable=True)
        picks, slices, first, place = [], [], 0, 0
        for count in counts.tolist():
            taken = min(size or count, count)
            picks.append(first + torch.arange(taken))
            slices.append(slice(place, place + taken))
            first, place = first + count, place + taken
        averages = torch.zeros(len(slices), place, dtype=dtype)
        for row, where in enumerate(slices):
            averages[row, where] = 1 / (where.stop - where.start)
        return cls(
            classes=classes,
            slices=tuple(slices),
            averages=averages.to(labels.device),
            _by_class=by_class,
            _rank=rank[by_class].double(),
            _picks=torch.cat(picks).to(labels.device),
        )

    def draw(self, generator: torch.Generator) -> Tensor:
        """Return a batch's indices into the labels, int64 [b]: class-major, each class shuffled."""
        # One sort shuffles within every class: the class's rank keeps classes apart, the fraction
        # orders its samples (double, so that the fraction keeps its bits beside a rank in the
        # hundreds).
        fraction = torch.rand(
            self._rank.shape, generator=generator, dtype=torch.double, device=self._rank.device
        )
        return self._by_class[(self._rank + fraction).argsort()[self._picks]]

    @property
    def labels(self) -> Tensor:
        """The classes of a drawn batch, the same for every draw, int64 [b]."""
        return self.classes.repeat_interleave(
            torch.tensor([s.stop - s.start for s in self.slices], device=self.classes.device)
        )
