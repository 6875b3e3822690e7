"""FedAvg on the device: local SGD from the server's weights (McMahan et al., 2017, ClientUpdate)."""

from __future__ import annotations

from client_app.device import DeviceClient, phase
from client_app.local_training import train_locally
from common.wire.weights import Weights


class FedAvgClient(DeviceClient):
    """Trains E epochs and sends the weights it ends with."""

    @phase("train")
    def train(self, w: Weights) -> Weights:
        """Return w_k, trained from ``w`` on the site's images."""
        model, _ = train_locally(self, w)
        return Weights.of(model, w.codec, copy=False)  # which ends with this
