"""FedAvg's local training (McMahan et al., 2017, ClientUpdate), which other methods start from or are held against."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from client_app.device import DeviceClient
from common.data import Samples
from common.models import Classifier
from common.settings.fedavg import FedAvgSettings
from common.training import Local, Trained, train
from common.wire import Weights

FEDAVG = Local()


def train_locally(
    client: DeviceClient,
    w: Weights,
    local: Local = FEDAVG,
    *,
    samples: Samples | None = None,
    around: Callable[[Classifier], nn.Module] | None = None,
) -> tuple[Classifier, Trained]:
    """Return the model after E epochs from ``w`` on the client's data, and how that went.

    With ``samples`` an epoch draws from these, as many as the site has images of its own. ``around`` puts the model
    into a module with more to train.

    Every method that calls this gets the same bits, but for what it fills ``local``'s places with: the draws are
    those of one purpose.
    """
    model = client.model(w)
    trained = train(
        model if around is None else around(model),
        client.samples if samples is None else samples,
        client.settings(FedAvgSettings),
        client.run.task,
        client.generator("local-training"),
        local=local,
        server_round=client.server_round,
        precision=client.run.config.compute.precision,
        examples=client.examples_an_epoch,
        before_step=client.deadline.check,
    )
    client.keep_statistics(model)
    return model, trained
