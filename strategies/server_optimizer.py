"""The server's step along the mean update: FedAvgM (Hsu et al., 2019), FedAdam and FedYogi (Reddi et al., 2021).

What a method makes of a round is the mean w'; Delta = w' - w_r is the server's pseudo-gradient. The steps are those of
Flower's strategies of these names, which are held against them in the tests; those work on Flower's messages, this on
weights, and so with any method whose devices train.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from common.settings.base import Settings
from common.wire.weights import Weights, WeightsSpec

#: beta_1 and beta_2 of adam and yogi, as in the paper
_BETAS = 0.9, 0.99

Moments = Mapping[str, Mapping[str, Tensor]]


@runtime_checkable
class ServerStep(Protocol):
    """The settings that say how the server steps; FedAvg's, and those of every method that inherits them."""

    @property
    def server_optimizer(self) -> str:
        """``sgd``, ``adam`` or ``yogi``."""

    @property
    def server_lr(self) -> float:
        """The learning rate."""

    @property
    def server_momentum(self) -> float:
        """The momentum of ``sgd``."""

    @property
    def server_tau(self) -> float:
        """The adaptivity of ``adam`` and ``yogi``."""


class ServerOptimizer:
    """Turns the mean of a round into the next round's weights.

    Running statistics are no solution of a descent: they are taken as the method made them.

    Parameters
    ----------
    spec : WeightsSpec
        Names the parameters.
    """

    def __init__(self, settings: ServerStep, spec: WeightsSpec) -> None:
        self._settings = settings
        self._spec = spec.parameters
        zeros = self._spec.zeros().tensors
        kinds = ("velocity",) if settings.server_optimizer == "sgd" else ("mean", "square")
        self.moments: Moments = {kind: dict(zeros) for kind in kinds}

    @classmethod
    def of(cls, settings: Settings, spec: WeightsSpec) -> ServerOptimizer | None:
        """Return the optimiser that ``settings`` ask for; None where they take the mean as it is, or know none."""
        if not isinstance(settings, ServerStep):
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
