"""What a server makes of the models that the sites end with: their mean, or what ``federation.robust`` says instead.

The mean is summed as they come: one copy of the model in memory, however many sites.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

import torch
from torch import Tensor

from common.learning.pieces import pieces
from common.learning.run import Run
from common.settings.fedavg import FedAvgSettings
from common.sites import Site
from common.wire.weights import Weights
from strategies.exchange.replies import Upload


def share_of(upload: Upload, settings: FedAvgSettings) -> int:
    """Return p_k before all of them are scaled to a sum of one: the site's number of examples, or one."""
    return upload.examples if settings.weighting == "counts" else 1


def shares_of(sites: Iterable[Site], run: Run) -> int:
    """Return the sum of these over ``sites``, of which each counts one where the average is a robust one."""
    by_counts = run.settings(FedAvgSettings).weighting == "counts"
    by_counts = by_counts and not run.config.federation.combines
    return sum(site.examples if by_counts else 1 for site in sites)


class Mean:
    """sum_k p_k w_k / sum_k p_k over what is added, in float64 and rounded once.

    Parameters
    ----------
    like : Weights
        Gives the names, shapes, dtypes and the codec of the mean.
    """

    def __init__(self, like: Weights) -> None:
        self._like = like
        self._sums: dict[str, Tensor] = {}
        self.total = 0.0

    def add(self, weights: Weights, share: float) -> None:
        """Count ``weights`` ``share`` times."""
        self.total += share
        for name, tensor in weights.read_only.items():
            if (
                name not in self._sums
            ):  # not before: until the first upload there is room for others
                self._sums[name] = torch.zeros(tensor.shape, dtype=torch.float64)
            for total, part in pieces(self._sums[name], tensor):  # each is made float64 on the way
                total.add_(part, alpha=share)

    def result(self) -> Weights:
        """Return the mean of what was added, of which there has to be some; the sums are given up for it."""
        like = self._like
        mean = {n: self._rounded(self._sums.pop(n), t.dtype) for n, t in like.read_only.items()}
        return Weights(mean, like.codec)

    def _rounded(self, summed: Tensor, dtype: torch.dtype) -> Tensor:
        mean = torch.empty(summed.shape, dtype=dtype)
        for part, total in pieces(mean, summed):
            part.copy_(total / self.total)
        return mean


class Average(Protocol):
    """What replies are added to one by one, and what is made of them."""

    total: float

    def add(self, weights: Weights, share: float) -> None:
        """Add a reply."""

    def result(self) -> Weights:
        """Return what was made of what was added, of which there has to be some; that is let go of."""


def average_of(run: Run, like: Weights, apart: Collection[str] = ()) -> Average:
    """Return what a run averages its replies by; ``apart`` are no parameters, beside the model's own of this kind."""
    if not run.config.federation.combines:
        return Mean(like)
    from strategies.robust_means import RobustMean

    statistics = frozenset(run.spec.names).difference(run.spec.trained)
    return RobustMean(like, run.config.federation, statistics.union(apart))
