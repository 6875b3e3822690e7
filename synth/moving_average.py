"""The exponential moving average of a model's weights, which generates better images than the weights do."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class MovingAverage:
    """A moving average of a model's parameters: a <- d_k a + (1 - d_k) w at the k-th update.

    The decay warms up, d_k = min(decay, k / (k + 9)) from k = 1: with 0.9995 alone the initial weights
    would make up a fifth of the average after 3,000 updates. So it reaches back over about a tenth of the
    training, until that is 18,000 updates long.

    Parameters
    ----------
    model : nn.Module
        The average starts at its parameters.
    decay : float
        From 0, which follows the weights, to less than 1.

    Raises
    ------
    ValueError
        A decay outside of that.
    """

    def __init__(self, model: nn.Module, decay: float = 0.9995) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"an average's decay goes from 0 to less than 1, not {decay}")
        self._names = [name for name, _ in model.named_parameters()]
        self._values = [p.detach().clone() for p in model.parameters()]
        self._decay, self._updates = decay, 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average towards the model's parameters."""
        self._updates += 1
        decay = min(self._decay, self._updates / (self._updates + 9))
        torch._foreach_lerp_(self._values, list(model.parameters()), 1 - decay)

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        """Give a model of the same kind the averaged parameters."""
        torch._foreach_copy_(list(model.parameters()), self._values)

    def state(self) -> dict[str, Tensor]:
        """Return a copy of the averaged parameters by name, and of the number of updates, int64 []."""
        values = {n: v.clone() for n, v in zip(self._names, self._values, strict=True)}
        return {**values, "updates": torch.tensor(self._updates)}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state`; KeyError if it is another model's."""
        torch._foreach_copy_(self._values, [state[name] for name in self._names])
        self._updates = int(state["updates"])
