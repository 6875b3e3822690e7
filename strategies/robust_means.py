"""Averages that a minority of sites cannot own: median, trimmed mean (Yin et al., 2018), Krum (Blanchard et al., 2017).

They need all of a round's models, and count each site once: a weight that a site may claim is a vote.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from logging import getLogger

import numpy as np
import torch
from torch import Tensor

from common.learning.pieces import pieces
from common.settings.sections import FederationSettings
from common.wire.weights import Weights

logger = getLogger("flwr")

#: what a product that ought to be whole may lack of it: 0.29 * 100 is 28.999...
_ROUNDED = 1e-9


def median(stacked: Tensor) -> Tensor:
    """Return the median along the first dimension, of an even number the mean of the two in the middle, float64."""
    ordered, n = _ordered(stacked), len(stacked)
    return (ordered[(n - 1) // 2].double() + ordered[n // 2].double()) / 2


def trimmed_mean(stacked: Tensor, share: float) -> Tensor:
    """Return the mean along the first dimension, of n sites, without the largest and the smallest, float64.

    At each end ``share`` n are left out, rounded down, but one of three or more.
    """
    n = len(stacked)
    cut = min(max(1, int(share * n + _ROUNDED)), (n - 1) // 2)
    return _ordered(stacked)[cut : n - cut].double().mean(0)


def _ordered(stacked: Tensor) -> Tensor:
    return torch.from_numpy(np.sort(stacked.numpy(), axis=0))  # in a third of torch.sort's time


def squared_distances(rows: Sequence[Mapping[str, Tensor]], names: Iterable[str]) -> Tensor:
    """Return how far replies lie apart in the tensors of these names, float64 [n, n].

    Differences are squared one by one: of sums of squares and products nothing would be left beside a huge reply.
    """
    apart = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for name in names:
        for parts in pieces(*(row[name] for row in rows)):
            flat = torch.stack(parts).double().reshape(len(rows), -1)
            for i in range(len(rows) - 1):
                apart[i, i + 1 :] += (flat[i + 1 :] - flat[i]).square_().sum(1)
    return apart + apart.T


def nearest(distances: Tensor, byzantine: int, kept: int) -> list[int]:
    """Return which of n replies Krum keeps, the best first, of equal ones the first.

    Those are best whose squared ``distances`` to the n - f - 2 nearest others have the least sum, where f are
    ``byzantine`` and n is at least 2 f + 3. All but f are ``kept`` at the most.
    """
    n = len(distances)
    near = distances.sort(1).values[:, 1 : n - byzantine - 1]  # the first is a reply's to itself
    order: list[int] = near.sum(1).argsort(stable=True).tolist()
    return order[: min(kept, n - byzantine)]


class RobustMean:
    """The median, trimmed mean or Krum's choice of what is added; every site counts once, whatever its share.

    All that is added is held until the end: no sum has what they need. What is no parameter (running statistics,
    counters) has no part in Krum's distances, where its size would drown them, and so would let a chosen reply lie
    about it: there the median of all is taken.

    Parameters
    ----------
    like : Weights
        Gives the names, shapes, dtypes and the codec of the result.
    federation : FederationSettings
        The rule, ``trim``, ``byzantine`` and ``kept``.
    apart : collection of str
        The tensors that are no parameters.
    """

    def __init__(
        self, like: Weights, federation: FederationSettings, apart: Collection[str] = ()
    ) -> None:
        self._like, self._federation = like, federation
        floating = (name for name, t in like.read_only.items() if t.is_floating_point())
        self._measured = frozenset(floating).difference(apart)
        self._rows: list[Mapping[str, Tensor]] = []
        self.total = 0.0

    def add(self, weights: Weights, share: float) -> None:
        """Count ``weights`` once: a ``share`` is what a site says of itself."""
        self._rows.append(weights.read_only)
        self.total += 1

    def result(self) -> Weights:
        """Return what the rule makes of what was added, of which there has to be some; that is let go of."""
        rows, self._rows = self._rows, []
        by_itself = self._trimmed if self._federation.robust == "trimmed" else median
        chosen, found = self._chosen(rows), {}
        for name, like in self._like.read_only.items():
            whole = chosen and name in self._measured
            each = [row[name] for row in (chosen if whole else rows)]
            found[name] = _combined(each, like.dtype, _mean if whole else by_itself)
        return Weights(found, self._like.codec)

    def _trimmed(self, stacked: Tensor) -> Tensor:
        return trimmed_mean(stacked, self._federation.trim)

    def _chosen(self, rows: Sequence[Mapping[str, Tensor]]) -> list[Mapping[str, Tensor]]:
        """Return the replies whose mean Krum takes; none where each number is judged by itself."""
        federation, f = self._federation, self._federation.byzantine
        if federation.robust != "krum" or not self._measured:
            return []
        if len(rows) < federation.needed_by_krum:
            logger.warning(
                "Krum needs %d replies with federation.byzantine=%d, and %d came: of each number the median is taken",
                *(federation.needed_by_krum, f, len(rows)),
            )
            return []
        distances = squared_distances(rows, sorted(self._measured))
        return [rows[i] for i in nearest(distances, f, federation.kept)]


def _mean(stacked: Tensor) -> Tensor:
    return stacked.double().mean(0)


def _combined(
    tensors: Sequence[Tensor], dtype: torch.dtype, rule: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return what ``rule`` makes of tensors of one shape, rounded once; a piece at a time."""
    found = torch.empty(tensors[0].shape, dtype=dtype)
    for part, *each in pieces(found, *tensors):
        part.copy_(rule(torch.stack(each)))
    return found
