"""What FedSynth sends instead of an update: synthetic batches, one a step of SGD, as many as a rate leaves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import ClassVar, Self

import torch
from torch import Tensor

from common.errors import ConfigError, PayloadError
from common.learning.run import Run
from common.models import Classifier
from common.models.registry import names
from common.settings.fedsynth import FedSynthSettings
from common.wire.coders import Classes, Coder, Header, image_coder, plain
from common.wire.form import Form, Found, TensorSpec, framed
from common.wire.image_codecs import NUMBERS
from common.wire.npy import AnyArray
from synth.synthetic_updates import Batches, Loss, loss_of

INPUTS, LOGITS, LABELS, STEP_SIZE = (
    "the set of synthetic batches",
    "the set of label logits",
    "the set of labels",
    "the step size",
)


@dataclass(frozen=True)
class SyntheticBatches:
    """m batches of b examples, in the order in which SGD takes them.

    ``inputs`` are float32 [m, b, *shape]; ``labels`` int64 [m, b, *targets], or float32 logits
    [m, b, *targets, classes] where they are trained; ``step_size`` is a float32 scalar where it is learned.

    The codec is that of the inputs, one of `NUMBERS`; ranges are each batch's own. Logits
    are sent as float32 with float32 inputs and as float16 with others, the step size always as float32.
    """

    inputs: Tensor
    labels: Tensor
    step_size: Tensor | None = None
    codec: str = field(default="float32", compare=False)

    kind: ClassVar[str] = "synthetic-batches"
    setting: ClassVar[tuple[str, str]] = ("images", "images")

    @property
    def examples(self) -> Tensor:
        """The inputs [m x b, *shape]."""
        return self.inputs.detach().flatten(0, 1)

    def showing(self, examples: Tensor) -> Self:
        """Return the same of other examples, [m x b, *shape]."""
        return replace(self, inputs=examples.reshape(self.inputs.shape))

    @property
    def trained(self) -> bool:
        """Whether the labels are logits."""
        return self.labels.is_floating_point()

    @property
    def floats(self) -> int:
        """The numbers that are sent, trained labels and a learned step size among them; no class is one."""
        step = 0 if self.step_size is None else 1
        return self.inputs.numel() + (self.labels.numel() if self.trained else 0) + step

    def encode(self) -> list[AnyArray]:
        """Return the header, inputs, labels (classes in the smallest integer type) and the step size if it is sent."""
        kinds = _label_coder(self.trained, self.codec)
        each: list[tuple[str, Tensor, Coder]] = [
            (INPUTS, self.inputs, image_coder(self.codec, axis=0)),
            (LOGITS if self.trained else LABELS, self.labels, kinds),
        ]
        if self.step_size is not None:
            each.append((STEP_SIZE, self.step_size, plain(torch.float32, "float32")))
        return framed(self.kind, {"codec": self.codec}, each)


@dataclass(frozen=True)
class SyntheticBatchesSpec(Form[SyntheticBatches]):
    """The form of synthetic batches that a receiver accepts.

    Parameters
    ----------
    m, b : int
        Batches, and examples in each; both exact.
    shape : tuple of int
        One example's input: (C, H, W) of an image, (T, d) of a text in embedding space.
    targets : tuple of int
        The shape of one example's target: () where it is one class, (T,) where each token has one.
    classes : int
        Classes or tokens to choose from.
    trained : bool
        Whether labels are trained, and logits then; else they are the classes' numbers.
    learned_step : bool
        Whether a step size comes along, above 0 and at most ``max_step``.
    """

    m: int
    b: int
    shape: tuple[int, ...]
    targets: tuple[int, ...]
    classes: int
    trained: bool
    learned_step: bool
    max_step: float

    kind = SyntheticBatches.kind
    codecs = NUMBERS

    def arrays(self, codec: str) -> Mapping[str, TensorSpec]:
        """Return inputs, labels or logits, and the step size if it is learned."""
        inputs = TensorSpec((self.m, self.b, *self.shape), coder=image_coder(codec, axis=0))
        targets, kinds = (self.m, self.b, *self.targets), _label_coder(self.trained, codec)
        logits = TensorSpec((*targets, self.classes), coder=kinds)
        classes = TensorSpec(targets, 0, self.classes - 1, torch.int64, coder=kinds)
        labels = {LOGITS: logits} if self.trained else {LABELS: classes}
        step = {STEP_SIZE: TensorSpec((), 0, self.max_step)} if self.learned_step else {}
        return {INPUTS: inputs, **labels, **step}

    def payload_of(self, tensors: Found, codec: str, header: Header) -> SyntheticBatches:
        """Return the batches; PayloadError for a step size of 0."""
        inputs, labels = tensors[INPUTS], tensors[LOGITS if self.trained else LABELS]
        step = tensors.get(STEP_SIZE)
        if step is not None and not float(step):
            raise PayloadError(
                f"{STEP_SIZE} is 0 where one above 0 and at most {self.max_step:g} was expected"
            )
        return SyntheticBatches(inputs, labels, step, codec)


def _label_coder(trained: bool, codec: str) -> Coder:
    """Return how labels are sent with inputs in a codec: logits as float32 or float16, classes as integers."""
    if not trained:
        return Classes()
    return plain(torch.float32, "float32" if codec == "float32" else "float16")


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
            "model.norm=instance, group or none, or your own model without batch norm."
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
    # In integers and as the rate is written: rounded, the largest rate that a refusal names could be refused too.
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
