"""FedAvg on the device (McMahan et al., 2017, ClientUpdate), and what Flower's own strategies ask of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from client_app.device import DeviceClient, Metrics, NDArrays, phase
from client_app.local_training import FEDAVG, trained_weights
from common.learning.task import difference, plus
from common.learning.training import Local
from common.specs.updates import Demands
from common.wire.weights import Weights


class FedAvgClient(DeviceClient):
    """Trains E epochs and sends the weights it ends with."""

    @phase("train")
    def train(self, w: Weights) -> Weights:
        """Return w_k, trained from ``w`` on the site's images."""
        return trained_weights(self, w, self.local(w))[0]

    def local(self, given: Weights) -> Local:
        """Return plain training."""
        return FEDAVG


# ---- foreign -------------------------------------------------------------------------------------
# The device of Flower's strategies: FedAvg's, with the additions to local training that some of them need.


class ForeignClient(DeviceClient):
    """Trains E epochs; pulled to the round's weights, or cut to a length, where the instruction says so."""

    demands = Demands()

    def fit(self, parameters: NDArrays, config: Mapping[str, Any]) -> tuple[NDArrays, int, Metrics]:
        """Run the phase as the instruction's demands have it."""
        self.demands = Demands.of(config)
        return super().fit(parameters, config)

    @phase("train")
    def train(self, w: Weights) -> Weights:
        """Return w_k, trained from ``w`` on the site's images."""
        ended, _ = trained_weights(self, w, Local(mu=self.demands.mu))
        return ended if self.demands.norm is None else self._clipped(ended, w, self.demands.norm)

    def _clipped(self, ended: Weights, w: Weights, norm: float) -> Weights:
        """Return w + min(1, C / ||u||) u with u = w_k - w over all floating tensors, as Flower's mods cut it."""
        update = difference(ended, w).double()
        length = float(update.norm())
        self.tell(norm_bit=length > norm)
        return plus(w, update * (norm / length)) if length > norm else ended
