"""A model as what it differs by from the one that its receiver sent: a byte a parameter, and a scale a tensor."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from common.wire.coders import Header, require_finite
from common.wire.form import Form, Found, TensorSpec
from common.wire.frame import frame
from common.wire.npy import AnyArray
from common.wire.weights import CopyOnWriteTensors, Weights, WeightsSpec

LEVELS = 127
"""The level of a tensor's largest number; -127 is that of its negative."""


@dataclass(frozen=True)
class Int8Update:
    """Levels int8 of the parameters' changes by name, their scales, float32 [n] in that order, and the rest unchanged.

    A change is its level times its tensor's scale, 1/127 of the largest magnitude: it is off by at most half of that.
    """

    levels: Mapping[str, Tensor]
    scales: Tensor
    rest: Mapping[str, Tensor]
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
        rest = {n: t.detach().cpu() for n, t in ended.items() if n not in levels}
        packed = torch.stack(scales) if scales else torch.empty(0)
        return cls(levels, packed, rest, tuple(ended)), left

    @property
    def floats(self) -> int:
        """The number of floating values, as of the weights that it encodes."""
        rest = sum(t.numel() for t in self.rest.values() if t.is_floating_point())
        return rest + sum(t.numel() for t in self.levels.values())

    def encode(self) -> list[AnyArray]:
        """Return the header, the scales, then one array a tensor, in the model's order."""
        tensors = {**self.levels, **self.rest}
        arrays = [np.asarray(tensors[name].contiguous().numpy()) for name in self.order]
        return frame(self.kind, {}, [np.asarray(self.scales.numpy()), *arrays])


@dataclass(frozen=True)
class Int8UpdateSpec(Form[Weights]):
    """A model of the form ``weights``, sent as its difference from ``base``, which has the same names."""

    weights: WeightsSpec
    base: Weights

    kind = Int8Update.kind

    @cached_property
    def coded(self) -> tuple[str, ...]:
        """The names of the parameters, which are sent in a byte a number; the others are as in the model."""
        names = zip(self.weights.names, self.weights.dtypes, strict=True)
        return tuple(n for n, d in names if n in self.weights.trained and d.is_floating_point)

    def arrays(self, codec: str) -> Mapping[str, TensorSpec]:
        """Return the scales, and each tensor's levels or values."""
        form, coded = self.weights, set(self.coded)
        each = {
            f"the update of '{name}'": TensorSpec(shape, -LEVELS, LEVELS, torch.int8)
            if name in coded
            else TensorSpec(shape, dtype=dtype)
            for name, shape, dtype in zip(form.names, form.shapes, form.dtypes, strict=True)
        }
        return {"the list of scales": TensorSpec((len(self.coded),), 0, math.inf), **each}

    def payload_of(self, tensors: Found, codec: str, header: Header) -> Weights:
        """Return the model: what was sent, and the change upon it."""
        scales, *sent = tensors.values()
        scale_of = dict(zip(self.coded, scales.double(), strict=True))
        started, ended = self.base.read_only, dict(zip(self.weights.names, sent, strict=True))
        for name, scale in scale_of.items():
            start = started[name]
            ended[name] = (start.double() + ended[name].double() * scale).to(start.dtype)
            require_finite(f"the weight '{name}'", ended[name])
        return Weights(CopyOnWriteTensors(ended))


def _levels_of(change: Tensor) -> tuple[Tensor, Tensor]:
    """Return the levels, int8 of the shape of a float64 ``change``, and their scale, a float32 scalar."""
    largest = change.abs().max() if change.numel() else change.new_zeros(())
    scale = (largest / LEVELS).float()
    require_finite("the scale of an update", scale)
    if not float(scale):
        return torch.zeros_like(change, dtype=torch.int8), scale
    return (change / scale.double()).round().clamp(-LEVELS, LEVELS).to(torch.int8), scale
