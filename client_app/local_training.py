"""FedAvg's local training (McMahan et al., 2017, ClientUpdate), which other methods start from or are held against."""

from __future__ import annotations

from client_app.device import DeviceClient
from common.models import Classifier
from common.settings.fedavg import FedAvgSettings
from common.training import Trained, plain, train
from common.wire import Weights


def train_locally(client: DeviceClient, w: Weights) -> tuple[Classifier, Trained]:
    """Return the model after E epochs of SGD from ``w`` on the client's data, and how that went.

    Every method that calls this gets the same bits: the draws are those of one purpose.
    """
    model = client.model(w)
    trained = train(
        model,
        client.samples,
        client.settings(FedAvgSettings),
        plain(client.run.task),
        client.generator("local-training"),
        precision=client.run.config.compute.precision,
        before_step=client.deadline.check,
    )
    return model, trained
