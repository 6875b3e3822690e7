"""FedAvg's local training (McMahan et al., 2017, ClientUpdate), which other methods start from or are held against."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor, nn

from client_app.device import DeviceClient
from client_app.private_steps import charge, privacy_of, refuse_coupled, samples_of
from common.data import Samples
from common.models import Classifier
from common.private_training import planned
from common.settings.fedavg import FedAvgSettings
from common.training import Local, Rule, Trained, plain_gradient, train
from common.wire import Weights

FEDAVG = Local()
_PURPOSE = "local-training"


def train_locally(
    client: DeviceClient,
    w: Weights,
    local: Local = FEDAVG,
    *,
    samples: Samples | None = None,
    around: Callable[[Classifier], nn.Module] | None = None,
    told: bool = True,
) -> tuple[Classifier, Trained]:
    """Return the model after E epochs from ``w`` on the client's data, and how that went.

    With ``samples`` an epoch draws from these, as many as the site has images of its own. ``around`` puts the model
    into a module with more to train. The mean loss is reported unless ``told`` is false. Under
    ``privacy.noise_multiplier`` the steps are DP-SGD's, and are charged before the first.

    Every method that calls this gets the same bits, but for what it fills ``local``'s places with: the draws are
    those of one purpose.

    Raises
    ------
    FederationError
        If a private run has a model that couples examples.
    """
    model = client.model(w)
    trainee = model if around is None else around(model)
    pool = client.samples if samples is None else samples
    rule, sampled = _rule(client, trainee, len(pool))
    trained = train(
        trainee,
        pool,
        client.settings(FedAvgSettings),
        client.run.task,
        client.generator(_PURPOSE),
        local=local,
        rule=rule,
        sampled=sampled,
        server_round=client.server_round,
        precision=client.run.config.compute.precision,
        examples=client.examples_an_epoch,
        before_step=client.deadline.check,
    )
    client.keep_statistics(model)
    if told:
        client.report(train_loss=trained.loss)
    return model, trained


def _rule(
    client: DeviceClient, model: nn.Module, pool: int
) -> tuple[Rule, Iterable[Tensor] | None]:
    """Return how gradients come about, and of which batches where these are no passes over the pool."""
    if not client.run.config.privacy.active:
        return plain_gradient, None
    refuse_coupled(model)
    drawn = min(client.examples_an_epoch, pool)
    steps = planned(client.run.config.privacy, client.settings(FedAvgSettings), pool, drawn)
    charge(client, steps)
    rule = privacy_of(client, _PURPOSE).rule(steps.expected)
    return rule, samples_of(client, _PURPOSE, steps, pool)
