"""What a server makes of the models that the sites end with: their mean, or what ``federation.robust`` says instead.

The mean is summed as they come: one copy of the model in memory, however many sites.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from logging import getLogger

import numpy as np
import torch
from torch import Tensor

from common.learning.compute import pieces
from common.learning.run import Run
from common.settings.base import Settings
from common.settings.fedavg import FedAvgSettings
from common.settings.sections import FederationSettings
from common.sites import Site
from common.wire.weights import Weights, WeightsSpec
from strategies.exchange.replies import Upload


def share_of(upload: Upload, settings: FedAvgSettings) -> int:
    """Return p_k before all are scaled to a sum of one: a site's number of examples, or one, or that of its sites."""
    return upload.examples if settings.weighting == "counts" or upload.inside else 1


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
        self._waiting: list[tuple[dict[str, Tensor], float]] = []
        self._sums: dict[str, Tensor] = {}
        self.total = 0.0

    def add(self, weights: Weights, share: float) -> None:
        """Count ``weights``, which must not change any more, ``share`` times.

        The first ones wait for the second. Then tensor by tensor of both gives way to the sum in float64, which takes
        as much memory as the two, unless the caller holds them.
        """
        self.total += share
        self._waiting.append((dict(weights.read_only), share))
        del weights
        if self._sums or len(self._waiting) > 1:
            self._add_waiting()

    def _add_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        # The largest tensors tend to be the last ones: what they leave free holds the sums of the others.
        for name in reversed([*waiting[0][0]] if waiting else []):
            for tensors, share in waiting:
                tensor = tensors.pop(name)
                if name not in self._sums:
                    self._sums[name] = torch.zeros(tensor.shape, dtype=torch.float64)
                for total, part in pieces(self._sums[name], tensor):  # made float64 on the way
                    total.add_(part, alpha=share)
                del tensor, part

    def result(self) -> Weights:
        """Return the mean of what was added, of which there has to be some; the sums are given up for it."""
        self._add_waiting()
        like = self._like
        mean = {n: self._rounded(self._sums.pop(n), t.dtype) for n, t in like.read_only.items()}
        return Weights(mean, like.codec)

    def _rounded(self, summed: Tensor, dtype: torch.dtype) -> Tensor:
        mean = torch.empty(summed.shape, dtype=dtype)
        for part, total in pieces(mean, summed):
            part.copy_(total / self.total)
        return mean


# ---- robust means --------------------------------------------------------------------------------
# Averages that a minority of sites cannot own: median, trimmed mean (Yin et al., 2018), Krum (Blanchard et al.,
# 2017).
#
# They need all of a round's models, and count each site once: a weight that a site may claim is a vote.

logger = getLogger("flwr")

#: by how much a product that should be an integer may fall short of it: 0.29 * 100 is 28.999...
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
    """Return the squared distances between replies over the tensors of these names, float64 [n, n].

    Differences are squared one by one: next to a huge reply, sums of squares and products would cancel.
    """
    squared = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for name in names:
        for parts in pieces(*(row[name] for row in rows)):
            flat = torch.stack(parts).double().reshape(len(rows), -1)
            for i in range(len(rows) - 1):
                squared[i, i + 1 :] += (flat[i + 1 :] - flat[i]).square_().sum(1)
    return squared + squared.T


def krum_order(distances: Tensor, byzantine: int, kept: int) -> list[int]:
    """Return the indices of the replies that Krum keeps, the best first, ties by order.

    Those are best whose squared ``distances`` to the n - f - 2 nearest others have the least sum, where f are
    ``byzantine`` and n is at least 2 f + 3. All but f are ``kept`` at the most.
    """
    n = len(distances)
    near = distances.sort(1).values[:, 1 : n - byzantine - 1]  # the first is a reply's to itself
    order: list[int] = near.sum(1).argsort(stable=True).tolist()
    return order[: min(kept, n - byzantine)]


class RobustMean:
    """The median, trimmed mean or Krum's choice of what is added; every site counts once, whatever its share.

    All that is added is held until the end: no sum has what they need. Tensors that are not parameters (running
    statistics, counters) are left out of Krum's distances, where their size would dominate and a chosen reply could
    falsify them: they get the median over all replies.

    Parameters
    ----------
    like : Weights
        Gives the names, shapes, dtypes and the codec of the result.
    federation : FederationSettings
        The rule, ``trim``, ``byzantine`` and ``kept``.
    exclude : collection of str
        The tensors that are not parameters.
    """

    def __init__(
        self, like: Weights, federation: FederationSettings, exclude: Collection[str]
    ) -> None:
        self._like, self._federation = like, federation
        floating = (name for name, t in like.read_only.items() if t.is_floating_point())
        self._measured = frozenset(floating).difference(exclude)
        self._rows: list[Mapping[str, Tensor]] = []
        self.total = 0.0

    def add(self, weights: Weights, share: float) -> None:
        """Count ``weights`` once: a ``share`` is what a site says of itself."""
        self._rows.append(weights.read_only)
        self.total += 1

    def result(self) -> Weights:
        """Return the rule's result for the added weights, at least one, and release them."""
        rows, self._rows = self._rows, []
        trimmed = partial(trimmed_mean, share=self._federation.trim)
        by_itself = trimmed if self._federation.robust == "trimmed" else median
        chosen, found = self._chosen(rows), {}
        for name, like in self._like.read_only.items():
            from_chosen = chosen and name in self._measured
            each = [row[name] for row in (chosen if from_chosen else rows)]
            found[name] = _combined(each, like.dtype, _mean if from_chosen else by_itself)
        return Weights(found, self._like.codec)

    def _chosen(self, rows: Sequence[Mapping[str, Tensor]]) -> list[Mapping[str, Tensor]]:
        """Return the replies whose mean Krum takes; none under rules for single numbers."""
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
        return [rows[i] for i in krum_order(distances, f, federation.kept)]


def _mean(stacked: Tensor) -> Tensor:
    return stacked.double().mean(0)


def _combined(
    tensors: Sequence[Tensor], dtype: torch.dtype, rule: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return ``rule`` applied to tensors of one shape, rounded once; a piece at a time."""
    found = torch.empty(tensors[0].shape, dtype=dtype)
    for part, *each in pieces(found, *tensors):
        part.copy_(rule(torch.stack(each)))
    return found


# ---- server optimizer ----------------------------------------------------------------------------
# The server's step along the mean update: FedAvgM (Hsu et al., 2019), FedAdam and FedYogi (Reddi et al., 2021).
#
# What a method makes of a round is the mean w'; Delta = w' - w_r is the server's pseudo-gradient. The steps are those
# of Flower's strategies of these names, which are held against them in the tests; those work on Flower's messages,
# this on weights, and so with any method whose devices train.

#: beta_1 and beta_2 of adam and yogi, as in the paper
_BETAS = 0.9, 0.99

Moments = Mapping[str, Mapping[str, Tensor]]


class ServerOptimizer:
    """Turns the mean of a round into the next round's weights.

    Running statistics are no solution of a descent: they are taken as the method made them.

    Parameters
    ----------
    spec : WeightsSpec
        Names the parameters.
    """

    def __init__(self, settings: FedAvgSettings, spec: WeightsSpec) -> None:
        self._settings = settings
        self._spec = spec.parameters
        zeros = self._spec.zeros().tensors
        kinds = ("velocity",) if settings.server_optimizer == "sgd" else ("mean", "square")
        self.moments: Moments = {kind: dict(zeros) for kind in kinds}

    @classmethod
    def of(cls, settings: Settings, spec: WeightsSpec) -> ServerOptimizer | None:
        """Return the optimiser that ``settings`` ask for; None if they use the plain mean, or have no such setting."""
        if not isinstance(settings, FedAvgSettings):
            return None
        plain = settings.server_optimizer == "sgd" and settings.server_lr == 1
        return None if plain and not settings.server_momentum else cls(settings, spec)

    def step(self, server_round: int, start: Weights, mean: Weights) -> Weights:
        """Return the weights after a round's step from ``start``, w_r, along what leads to ``mean``, w'."""
        deltas = {n: mean.tensors[n] - start.tensors[n] for n in self._spec.names}
        move = self._sgd if self._settings.server_optimizer == "sgd" else self._adaptive
        steps = move(deltas)
        lr = self._settings.server_lr * self._bias_correction(server_round)
        stepped = {n: start.tensors[n] + lr * step for n, step in steps.items()}
        return Weights(stepped, mean.codec).over(mean)

    def _sgd(self, deltas: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """V <- beta v + Delta."""
        beta, old = self._settings.server_momentum, self.moments["velocity"]
        velocity = {n: beta * old[n] + delta for n, delta in deltas.items()}
        self.moments = {"velocity": velocity}
        return velocity

    def _adaptive(self, deltas: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """M <- b1 m + (1 - b1) Delta; v by adam or yogi; the step is m / (sqrt(v) + tau)."""
        (b1, b2), tau = _BETAS, self._settings.server_tau
        old = self.moments
        mean = {n: b1 * old["mean"][n] + (1 - b1) * d for n, d in deltas.items()}
        square = {n: self._square(old["square"][n], d * d, b2) for n, d in deltas.items()}
        self.moments = {"mean": mean, "square": square}
        return {n: mean[n] / (square[n].sqrt() + tau) for n in deltas}

    def _bias_correction(self, server_round: int) -> float:
        """Return Adam's, which Flower's FedAdam has, counting from 2, and the paper's Algorithm 2 has not."""
        if self._settings.server_optimizer != "adam":
            return 1.0
        b1, b2 = (1 - beta ** (server_round + 1) for beta in _BETAS)
        return math.sqrt(b2) / b1

    def _square(self, old: Tensor, new: Tensor, b2: float) -> Tensor:
        if self._settings.server_optimizer == "adam":
            return b2 * old + (1 - b2) * new
        return old - (1 - b2) * new * torch.sign(old - new)
