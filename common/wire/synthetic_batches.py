"""Synthetic batches, one a step of SGD: what FedSynth sends instead of an update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
from torch import Tensor

from common.errors import PayloadError
from common.wire.codec import (
    AnyArray,
    encoded_bytes,
    frame,
    pack,
    pack_classes,
    require_count,
    unframe,
    unpack,
    unpack_classes,
)
from common.wire.image_codecs import decoded, encoded, most_bytes, require

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
    travel as float32 beside float32 inputs and as float16 beside the others, the step size always as float32.
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
        more, values = encoded(self.codec, self.inputs, INPUTS, axis=0)
        arrays = [values, self._packed_labels()]
        if self.step_size is not None:
            arrays.append(pack(STEP_SIZE, self.step_size, "float32"))
        return frame(self.kind, {"codec": self.codec, **more}, arrays)

    def _packed_labels(self) -> AnyArray:
        if self.trained:
            return pack(LOGITS, self.labels, _logit_codec(self.codec))
        return pack_classes(self.labels)

    @classmethod
    def decode(cls, arrays: Sequence[AnyArray], spec: SyntheticBatchesSpec) -> Self:
        """Rebuild the batches; PayloadError if count, dtype, shape, labels, step or values break ``spec``."""
        header, body = unframe(cls.kind, arrays)
        codec = require(header.get("codec"))
        require_count(cls.kind, body, 3 if spec.learned_step else 2)
        shape = (spec.m, spec.b, *spec.shape)
        inputs = decoded(codec, body[0], shape, header, INPUTS, axis=0)
        targets = (spec.m, spec.b, *spec.targets)
        if spec.trained:
            labels = unpack(LOGITS, body[1], (*targets, spec.classes), _logit_codec(codec))
        else:
            labels = unpack_classes(LABELS, body[1], targets, spec.classes)
        step = _decode_step(body[2], spec.max_step) if spec.learned_step else None
        return cls(inputs, labels, step, codec)

    def as_sent(self, spec: SyntheticBatchesSpec) -> Self:
        """Return the batches as the receiver will read them, on the CPU: a device replays exactly what it sends."""
        return self.decode(self.encode(), spec)


@dataclass(frozen=True)
class SyntheticBatchesSpec:
    """What a receiver of synthetic batches accepts.

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

    payload: ClassVar[type[SyntheticBatches]] = SyntheticBatches

    @property
    def max_bytes(self) -> int:
        """The bytes of the inputs in the codec that takes most, and of logits in float32 or the classes' numbers."""
        inputs = most_bytes((self.m, self.b, *self.shape))
        target = math.prod(self.targets) * (4 * self.classes if self.trained else 8)
        return encoded_bytes(inputs, self.m * self.b * target, 4)


def _logit_codec(codec: str) -> str:
    return "float32" if codec == "float32" else "float16"


def _decode_step(array: AnyArray, most: float) -> Tensor:
    step = unpack(STEP_SIZE, array, (), "float32")
    if not 0 < float(step) <= float(np.float32(most)):  # a sender clamps in the step's own dtype
        raise PayloadError(
            f"{STEP_SIZE} is {float(step):g} where one above 0 and at most {most:g} was expected"
        )
    return step
