"""FedAvg's local training (McMahan et al., 2017), plain or private, which other methods start from."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from client_app.ahead import PURPOSE
from client_app.device import DeviceClient
from common.errors import FederationError
from common.learning.steps import DPSGDSteps, planned
from common.learning.task import Task
from common.learning.training import (
    GradientRule,
    Gradients,
    Local,
    Objective,
    Trained,
    dp_sgd,
    train,
)
from common.models import Classifier, couples_samples
from common.privacy.events import Event
from common.samples.inputs import Samples
from common.settings.fedavg import FedAvgSettings, TrainingSettings
from common.wire.weights import Weights
from synth.row_draws import UndrawableError

FEDAVG = Local()


def train_locally(
    client: DeviceClient,
    w: Weights,
    local: Local = FEDAVG,
    *,
    samples: Samples | None = None,
    around: Callable[[Classifier], nn.Module] | None = None,
    reported: bool = True,
) -> tuple[Classifier, Trained]:
    """Return the model after E epochs from ``w`` on the client's data, and how that went.

    With ``samples`` an epoch draws from these, as many as the site has images. ``around`` puts the model
    into a module with more to train. The mean loss is reported unless ``reported`` is false. Under
    ``privacy.noise_multiplier`` the steps are DP-SGD's, and are charged before the first. Under ``model.train=head``
    all layers but the last stay unchanged.

    Every method that calls this gets the same bits, except for its own values in ``local``: the draws are
    those of one purpose.

    Raises
    ------
    FederationError
        If a private run has a model that couples examples.
    """
    model, head_alone = client.model(w), client.run.config.model.train == "head"
    for name, parameter in model.named_parameters() if head_alone else ():
        parameter.requires_grad_(model.is_of_head(name))
    trainee = model if around is None else around(model)
    pool = client.samples if samples is None else samples
    if client.settings(FedAvgSettings).class_weights == "balanced":
        if local.objective is not None:  # of a user's method
            raise FederationError("class_weights apply to the task's loss: set them to none")
        local = replace(local, objective=weighted_in_batch(client.run.task, balanced(pool.labels)))
    draws, gradients = _gradients(client, trainee, pool)
    try:
        trained = train(
            trainee,
            pool,
            client.settings(FedAvgSettings),
            client.run.task,
            draws,
            local=local,
            gradients=gradients,
            server_round=client.server_round,
            precision=client.run.config.compute.precision,
            examples=client.examples_an_epoch,
            before_step=client.deadline.check,
            head_alone=head_alone,
        )
    except UndrawableError as error:
        raise FederationError(f"{error}, or set privacy.noise_multiplier=0") from None
    client.keep_own_part(model)
    if reported:
        client.report(train_loss=trained.loss)
    return model, trained


def trained_weights(
    client: DeviceClient, w: Weights, local: Local = FEDAVG
) -> tuple[Weights, Trained]:
    """Return the weights that `train_locally` ends with, in the codec of ``w``, and how that went.

    Under ``compute.batched`` they may have been trained with those of other sites.
    """
    made, client.trained_ahead = client.trained_ahead, None
    if made is not None:
        client.report(train_loss=made.trained.loss, seconds=made.seconds)
        return Weights(made.parameters, w.codec), made.trained
    model, trained = train_locally(client, w, local)
    if local.by_terms_alone and client.run.config.model.train == "all":
        return client.run.hand_over(model, w.codec), trained
    return Weights.of(model, w.codec, copy=False), trained


def train_aside(
    client: DeviceClient,
    model: Classifier,
    settings: TrainingSettings,
    purpose: str,
    *,
    samples: Samples | None = None,
    local: Local = FEDAVG,
) -> Trained:
    """Train ``model`` in place, without noise: what it learns stays at the site, or leaves through a mechanism.

    With ``samples`` on these, else on the client's data, drawn by ``purpose``.
    """
    return train(
        model,
        client.samples if samples is None else samples,
        settings,
        client.run.task,
        client.generator(purpose),
        local=local,
        server_round=client.server_round,
        precision=client.run.config.compute.precision,
        examples=client.examples_an_epoch if samples is None else 0,
        before_step=client.deadline.check,
    )


def balanced(labels: Tensor) -> Tensor:
    """Return a weight for each example, float32 [n], of mean 1: each class of these labels has the same in all."""
    hard = labels.argmax(1) if labels.is_floating_point() else labels
    counts = torch.bincount(hard)
    return (len(hard) / (counts.count_nonzero() * counts.double())).float()[hard]


def weighted_in_batch(task: Task, weights: Tensor) -> Objective:
    """Return the task's loss with example i counting ``weights[i]`` times, in each batch over the sum of its weights.

    So torch's cross-entropy has it. Over their number, the one example in a thousand makes a step 500 times as long.
    """

    def objective(model: nn.Module, x: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
        own = weights[positions]
        return task.loss(model(x), targets, own / own.mean())

    return objective


def _gradients(
    client: DeviceClient, model: nn.Module, pool: Samples
) -> tuple[torch.Generator, Gradients]:
    """Return the generator of a client's training, and its gradients: plain ones, or DP-SGD's, which are charged."""
    if not client.run.config.privacy.active or client.run.config.clips_updates:
        return client.generator(PURPOSE), Gradients()
    if client.run.config.model.train == "all":
        refuse_coupled(model)  # a head alone trains on what batch norms make in evaluation
    steps = dp_sgd_steps(client, len(pool))
    charge(client, steps)
    rule, sampled = rule_of(client, PURPOSE, steps), samples_of(client, PURPOSE, steps, pool)
    gradients = Gradients(rule, sampled, client.draws.rows(PURPOSE, pool))
    if client.draws.seeded:
        return client.generator(PURPOSE), gradients
    # This seeds the draws for all of a batch, such as those of NumPy in a user's network: how many there are can follow
    # the size of a sample, so that they must stay secret.
    return torch.Generator(client.run.device).manual_seed(secrets.randbits(63)), gradients


def dp_sgd_steps(client: DeviceClient, pool: int) -> DPSGDSteps:
    """Return the steps of a private training on ``pool`` examples."""
    drawn = min(client.examples_an_epoch, pool)
    return planned(client.run.config, client.settings(FedAvgSettings), pool, drawn)


# ---- private steps -------------------------------------------------------------------------------
# A site's private local training: what is public of it, what the ledger is charged, and where its draws come from.

MECHANISM = "dp-sgd"
"""What the ledger calls it. Neighbouring data sets have one example more or less, and say the same of their counts."""


def charge(client: DeviceClient, steps: DPSGDSteps) -> None:
    """Charge what ``steps`` cost, before the first of them."""
    noise = client.run.config.privacy.noise_multiplier
    client.draws.charge(Event(MECHANISM, noise, steps.rate, steps.steps))


def refuse_coupled(model: nn.Module) -> None:
    """Refuse a model whose examples change each other's gradients, as batch norm has them: FederationError."""
    model.train()
    if couples_samples(model):
        raise FederationError(
            "the model normalises over its batch, so that an example changes the gradients of others, and to clip each "
            "by itself bounds nothing: choose model.norm=group or instance, or a model without batch norm, or set "
            "privacy.noise_multiplier=0"
        )


def rule_of(client: DeviceClient, purpose: str, steps: DPSGDSteps) -> GradientRule:
    """Return how gradients come about, by the run's clip and noise; ``purpose`` names the training they are for."""
    privacy = client.run.config.privacy
    gaussian = client.draws.gaussian(f"{purpose} noise", privacy.noise_multiplier, privacy.clip)
    return dp_sgd(gaussian, steps.expected)


def samples_of(
    client: DeviceClient, purpose: str, steps: DPSGDSteps, pool: Samples
) -> Iterator[Tensor]:
    """Yield the positions in the pool that each step draws, int64 [m], each by itself with the steps' rate."""
    for step in range(steps.steps):
        yield client.draws.sample(f"{purpose} sample {step}", steps.rate, pool)


# ---- fidelity ------------------------------------------------------------------------------------
# How near what a device sends comes to the update that FedAvg's local training would have given.


def fidelity(sent: Tensor, reference: Tensor) -> dict[str, float]:
    """Compare the update the server will decode with the one that it represents.

    Parameters
    ----------
    sent, reference : Tensor
        Updates w' - w_r, float [P].

    Returns
    -------
    dict of str to float
        ``cosine`` of the two, and ``norm_error`` = |sent - reference| / |reference|. Where one of the two is
        zero the cosine is 0; where the reference is, the error is 0 for a zero update, else 1.
    """
    a, b = sent.double(), reference.double()
    length, other = float(a.norm()), float(b.norm())
    if not other:
        return {"cosine": 0.0, "norm_error": float(length > 0)}
    cosine = float(a @ b) / (length * other) if length else 0.0
    return {"cosine": cosine, "norm_error": float((a - b).norm()) / other}
