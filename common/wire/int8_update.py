"""A model as what it differs by from the one that its receiver sent: a byte a parameter, and a scale a tensor."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from common.errors import PayloadError
from common.wire.codec import (
    MAX_ARRAY_HEADER_BYTES,
    AnyArray,
    frame,
    require_count,
    require_finite,
    require_shape,
    unframe,
    unpack,
)
from common.wire.weights import CopyOnWriteTensors, Weights, WeightsSpec, numpy_dtype

LEVELS = 127
"""The level of a tensor's largest number; -127 is that of its negative."""


@dataclass(frozen=True)
class Int8Update:
    """Levels int8 of the parameters' changes by name, a scale of each, float32 [n] in that order, and all else whole.

    A change is its level times its tensor's scale, 1/127 of the largest magnitude: it is off by at most half of that.
    """

    levels: Mapping[str, Tensor]
    scales: Tensor
    whole: Mapping[str, Tensor]
    order: tuple[str, ...]

    kind: ClassVar[str] = "int8-update"

    @classmethod
    def of(
        cls,
        new: Weights,
        base: Weights,
        parameters: Collection[str],
        owed: Mapping[str, Tensor] | None = None,
    ) -> tuple[Int8Update, Mapping[str, Tensor]]:
        """Return the coded change from ``base`` to ``new``, and by how much it falls short of it; else PayloadError."""
        ended, started, owed = new.read_only, base.read_only, owed or {}
        levels: dict[str, Tensor] = {}
        scales: list[Tensor] = []
        left: dict[str, Tensor] = {}
        for name, tensor in ended.items():
            if name not in parameters or not tensor.is_floating_point():
                continue
            change = tensor.detach().cpu().double() - started[name].double()
            if name in owed:
                change += owed[name].double()
            require_finite(f"the update of '{name}'", change)
            levels[name], scale = _levels_of(change)
            scales.append(scale)
            left[name] = (change - levels[name].double() * scale.double()).float()
        whole = {n: t.detach().cpu() for n, t in ended.items() if n not in levels}
        packed = torch.stack(scales) if scales else torch.empty(0)
        return cls(levels, packed, whole, tuple(ended)), left

    @property
    def floats(self) -> int:
        """The number of floating values, as of the weights that it stands for."""
        whole = sum(t.numel() for t in self.whole.values() if t.is_floating_point())
        return whole + sum(t.numel() for t in self.levels.values())

    def encode(self) -> list[AnyArray]:
        """Return the header, the scales, then one array a tensor, in the model's order."""
        tensors = {**self.levels, **self.whole}
        arrays = [np.asarray(tensors[name].contiguous().numpy()) for name in self.order]
        return frame(self.kind, {}, [np.asarray(self.scales.numpy()), *arrays])

    @classmethod
    def decode(cls, arrays: Sequence[AnyArray], spec: Int8UpdateSpec) -> Weights:
        """Return the model: what was sent, and the change upon it, or raise PayloadError."""
        _, body = unframe(cls.kind, arrays)
        form = spec.weights
        require_count(cls.kind, body, 1 + len(form.names))
        scales = unpack("the list of scales", body[0], (len(spec.coded),), "float32")
        if len(scales) and float(scales.min()) < 0:
            raise PayloadError(f"a scale is {float(scales.min()):g} where none is below 0")
        scale_of = dict(zip(spec.coded, scales, strict=True))
        started, tensors = spec.base.read_only, {}
        for name, shape, dtype, array in zip(
            form.names, form.shapes, form.dtypes, body[1:], strict=True
        ):
            coded = name in scale_of
            sent = numpy_dtype(torch.int8 if coded else dtype).name
            require_shape(f"the update of '{name}'", array, shape, sent)
            tensor = torch.from_numpy(np.array(array))
            if coded:
                tensor = _changed(name, started[name], tensor, scale_of[name])
            require_finite(f"the weight '{name}'", tensor)
            tensors[name] = tensor
        return Weights(CopyOnWriteTensors(tensors))


@dataclass(frozen=True)
class Int8UpdateSpec:
    """A model of the form ``weights``, sent as what it differs by from ``base``, which has all of its names."""

    weights: WeightsSpec
    base: Weights

    payload: ClassVar[type[Int8Update]] = Int8Update

    @property
    def coded(self) -> tuple[str, ...]:
        """The names of the parameters, which travel in a byte a number; the others are as in the model."""
        names = zip(self.weights.names, self.weights.dtypes, strict=True)
        return tuple(n for n, d in names if n in self.weights.trained and d.is_floating_point)

    @property
    def max_bytes(self) -> int:
        """The bytes of the model's own dtypes, of which it takes about a quarter, and of the scales."""
        return self.weights.max_bytes + MAX_ARRAY_HEADER_BYTES + 4 * len(self.weights.names)


def _levels_of(change: Tensor) -> tuple[Tensor, Tensor]:
    """Return the levels, int8 of the shape of a float64 ``change``, and their scale, a float32 scalar."""
    largest = change.abs().max() if change.numel() else change.new_zeros(())
    scale = (largest / LEVELS).float()
    require_finite("the scale of an update", scale)
    if not float(scale):
        return torch.zeros_like(change, dtype=torch.int8), scale
    return (change / scale.double()).round().clamp(-LEVELS, LEVELS).to(torch.int8), scale


def _changed(name: str, start: Tensor, levels: Tensor, scale: Tensor) -> Tensor:
    if levels.numel() and int(levels.min()) < -LEVELS:
        raise PayloadError(f"the update of '{name}' holds a level of -128 where -127 is the least")
    return (start.double() + levels.double() * scale.double()).to(start.dtype)
