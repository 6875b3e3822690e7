"""FedAvg on the device: local SGD from the server's weights (McMahan et al., 2017, ClientUpdate)."""

from __future__ import annotations

from client_app.device import DeviceClient, phase
from common.settings.fedavg import FedAvgSettings
from common.training import plain, train
from common.wire import Weights


class FedAvgClient(DeviceClient):
    """Trains E epochs and sends the weights it ends with."""

    @phase("train")
    def train(self, w: Weights) -> Weights:
        """Return w_k, trained from ``w`` on the site's images."""
        settings = self.settings(FedAvgSettings)
        model = self.model(w)
        trained = train(
            model,
            self.samples,
            settings,
            plain(self.run.task),
            self.generator("local-training"),
            precision=self.run.config.compute.precision,
        )
        self.report(train_loss=trained.loss)
        return Weights.of(model, w.codec)
