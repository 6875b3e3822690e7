"""How many synthetic examples a compression rate leaves: b = floor(P / (rate x floats of an example x m))."""

from __future__ import annotations

import math
from fractions import Fraction

import torch

from common.errors import ConfigError
from common.learning.run import Run
from common.models import Classifier
from common.models.registry import names
from common.settings.fedsynth import FedSynthSettings
from common.wire.synthetic_batches import SyntheticBatches, SyntheticBatchesSpec
from synth.synthetic_updates import Batches, Loss, loss_of

#: a learned step size may grow by this factor at most
STEP_GROWTH = 1000.0


def spec_of(run: Run, model: Classifier | None = None) -> SyntheticBatchesSpec:
    """Return the form of the batches that a run's devices send; ``model`` is the run's, where one is built already.

    An example costs its input's floats, and its label's where labels are trained; a learned step size costs one
    float. The formula is this package's: the paper gives rates only.
    """
    settings, info = run.settings(FedSynthSettings), run.info
    model = run.build_model() if model is None else model
    if next(model.buffers(), None) is not None:
        raise ConfigError(
            "method=fedsynth replays plain steps and needs a model without running statistics: choose "
            "model.norm=instance, group or none, or a model of your own without batch norm."
        )
    if not model.continuous_shape:
        raise ConfigError(
            f"method=fedsynth moves a text's token vectors, which model.name={run.config.model.name} does not show: "
            f"choose {names('text')}."
        )
    trained = settings.labels != "fixed"
    targets = info.target_shape
    if trained and targets:
        raise ConfigError(
            f"fedsynth.labels={settings.labels} would send {len(info.classes)} numbers for every token of "
            f"{run.config.dataset}: set fedsynth.labels=fixed."
        )
    example = math.prod(model.continuous_shape) + (len(info.classes) if trained else 0)
    floats = sum(p.numel() for p in model.parameters())
    learned = int(settings.learn_step)
    # In whole numbers and as the rate is written: rounded, the largest rate that a refusal names could be refused too.
    batch = math.floor(
        (floats / Fraction(str(settings.rate)) - learned) / (example * settings.steps)
    )
    if batch < 1:
        largest = 10 * floats // (example * settings.steps + learned) / 10
        raise ConfigError(_too_high(settings, floats, example, largest))
    return SyntheticBatchesSpec(
        settings.steps,
        batch,
        model.continuous_shape,
        targets,
        len(info.classes),
        trained=trained,
        learned_step=settings.learn_step,
        max_step=STEP_GROWTH * settings.step_size,
    )


def _too_high(settings: FedSynthSettings, floats: int, example: int, largest: float) -> str:
    asked = (
        f"fedsynth.rate={settings.rate:g} leaves no example in each of fedsynth.steps={settings.steps} batches, at "
        f"{example} floats an example,"
    )
    if largest < 1:
        lower = "lower fedsynth.steps or " if settings.steps > 1 else ""
        return (
            f"{asked} for a model of {floats:,} parameters, and no rate would: {lower}take a larger model (raise "
            "model.width)."
        )
    return f"{asked} for a model of {floats:,} parameters: the largest possible rate is {largest:.12g}."


def step_loss(run: Run, model: Classifier) -> Loss:
    """Return the loss whose gradient a step along a batch takes, the same at the sites and the server."""
    raw = run.settings(FedSynthSettings).labels == "raw"
    return loss_of(model, run.task.loss, raw=raw)


def as_batches(
    received: SyntheticBatches, settings: FedSynthSettings, device: torch.device
) -> Batches:
    """Return a payload as the mathematics takes it, with the setting's step size where none was sent."""
    step_size = received.step_size
    if step_size is None:
        step_size = torch.tensor(settings.step_size)
    return Batches(received.inputs.to(device), received.labels.to(device), step_size.to(device))
