"""SCAFFOLD on the server (Karimireddy et al., 2020, Algorithm 1): averages models and control variates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from common.run import Run
from common.sites import Site
from common.specs.scaffold import CONTROL, WEIGHTS, bundle_spec, control_spec
from common.wire import Bundle, Weights
from strategies.averaging import Mean, shares_of
from strategies.base import Instruction, State
from strategies.exchange.replies import Upload
from strategies.fedavg import FedAvg


class Scaffold(FedAvg):
    """w_{r+1} = mean of w_k, c <- c + |S| / K mean of (c_k+ - c_k), with K the sites that there are.

    With ``weighting=counts`` both means are weighted by p_k, and the sums of p_k replace |S| and K: c stays
    sum_k p_k c_k, the correction that the weighted optimum needs. The paper's eta_g is ``server_lr``.
    """

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        self._expects = bundle_spec(run)
        self._c = control_spec(run).zeros()

    def instructions(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Send w_r and c, expect w_k and what c_k changed by."""
        train = Instruction("train", Bundle({WEIGHTS: weights, CONTROL: self._c}), self._expects)
        return {site.name: train for site in sites}

    def model_of(self, upload: Upload) -> Weights:
        """Return w_k."""
        assert isinstance(upload.payload, Bundle)
        return upload.payload.part(WEIGHTS, Weights)

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Average both as they come."""
        mean, changes = Mean(weights), Mean(self._c)
        for upload in uploads:
            assert isinstance(upload.payload, Bundle)
            share = self.share(upload)
            mean.add(self.model_of(upload), share)
            changes.add(upload.payload.part(CONTROL, Weights), share)
            del upload  # or it is held while the next device works
        everybody = shares_of(self.sites, self.run.config.settings)
        part, change = changes.total / everybody, changes.result().tensors
        self._c = Weights({name: c + part * change[name] for name, c in self._c.tensors.items()})
        return mean.result()

    def state_dict(self) -> State:
        """Return c."""
        return {CONTROL: dict(self._c.tensors)}

    def load_state_dict(self, state: State) -> None:
        """Take back c."""
        self._c = Weights(dict(state[CONTROL]))
