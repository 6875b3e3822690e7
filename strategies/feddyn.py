"""FedDyn on the server (Acar et al., 2021, Algorithm 1): the average, corrected by what the sites moved in sum."""

from __future__ import annotations

from collections.abc import Iterable

from common.learning.run import Run
from common.settings.fedavg import FedDynSettings
from common.wire.weights import Weights
from strategies.averaging import shares_of
from strategies.base import State
from strategies.exchange.replies import Upload
from strategies.fedavg import FedAvg

_H = "h"


class FedDyn(FedAvg):
    """h <- h - alpha / K sum_k (w_k - w_r), w_{r+1} = mean of w_k - h / alpha, with K the sites that there are.

    With ``weighting=counts`` sites count p_k in both, and the sum of all p_k replaces K: h = 0 is where the
    weighted sum of gradients is. Running statistics are averaged as they are.
    """

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        self.settings = run.settings(FedDynSettings)
        self._h = run.spec.parameters.zeros().tensors

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Average as they come; without regulariser there is no h."""
        averaged = super().update(server_round, weights, uploads)
        if not self.settings.alpha:
            return averaged
        ends = averaged.tensors
        part = self.settings.alpha * self.total / shares_of(self.sites, self.run)
        self._h = {n: h - part * (ends[n] - weights.tensors[n]) for n, h in self._h.items()}
        solved = {n: averaged.tensors[n] - h / self.settings.alpha for n, h in self._h.items()}
        return Weights(solved, weights.codec).over(averaged)

    def state_dict(self) -> State:
        """Return h."""
        return {_H: dict(self._h)}

    def load_state_dict(self, state: State) -> None:
        """Restore h."""
        self._h = dict(state[_H])
