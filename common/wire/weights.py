"""A model's state: every parameter and buffer, by name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn

from common.wire.coders import Header, plain
from common.wire.form import Form, Found, TensorSpec
from common.wire.frame import frame
from common.wire.npy import AnyArray

CODECS = {"float32": 1e-5, "float16": 2e-3}
"""The codecs of weights, and how far each rounds a weight, as a share of it; float32 leaves each in its own dtype.

Those of updates are payloads of their own, such as `Int8Update`.
"""


def _float_codec(codec: str) -> str:
    """Return the dtype in which floating weights are sent; empty for each in its own."""
    return "" if codec == "float32" else codec


def _named(name: str) -> str:
    return f"the weight '{name}'"


@dataclass(frozen=True)
class Weights:
    """A model's state as CPU tensors; ``codec`` names the dtype in which floating values are sent."""

    tensors: Mapping[str, Tensor]
    codec: str = field(default="float32", compare=False)

    kind: ClassVar[str] = "weights"
    setting: ClassVar[tuple[str, str]] = ("weights", "whole_weights")

    @classmethod
    def of(cls, model: nn.Module, codec: str = "float32", *, copy: bool = True) -> Weights:
        """Copy the state of ``model``; ``copy=False`` hands over the tensors of a model that is no longer needed."""
        with torch.no_grad():
            state = model.state_dict(keep_vars=True)
            return cls({k: v.detach().to("cpu", copy=copy) for k, v in state.items()}, codec)

    @property
    def read_only(self) -> Mapping[str, Tensor]:
        """The tensors for who reads or copies them, and nothing else: those that arrived are not copied first."""
        return (
            self.tensors.read_only()
            if isinstance(self.tensors, CopyOnWriteTensors)
            else self.tensors
        )

    def copy_on_write(self) -> Weights:
        """Return the same values, each copied when it is written to."""
        return Weights(CopyOnWriteTensors(self.read_only), self.codec)

    def load_into(self, model: nn.Module) -> None:
        """Copy these values into ``model``, on any device; its other tensors do not change."""
        model.load_state_dict({**model.state_dict(), **self.read_only})

    def only(self, spec: WeightsSpec) -> Weights:
        """Return the tensors that ``spec`` names, in its order."""
        given = self.read_only
        chosen = {name: given[name] for name in spec.names}
        return Weights(
            CopyOnWriteTensors(chosen) if isinstance(self.tensors, CopyOnWriteTensors) else chosen,
            self.codec,
        )

    def over(self, base: Weights) -> Weights:
        """Return ``base`` with these tensors instead of its own of the same names."""
        return Weights({**base.tensors, **self.tensors}, self.codec)

    @property
    def floats(self) -> int:
        """The number of floating values: for a model without running statistics, its parameters."""
        return sum(t.numel() for t in self.read_only.values() if t.is_floating_point())

    def encode(self) -> list[AnyArray]:
        """Return the header, then one array a tensor, in the model's order."""
        codec = _float_codec(self.codec)
        each = self.read_only.items()
        arrays = [plain(t.dtype, codec).pack(_named(name), t, {}) for name, t in each]
        return frame(self.kind, {"codec": self.codec}, arrays)


@dataclass(frozen=True)
class WeightsSpec(Form[Weights]):
    """The names, shapes and dtypes of a model's state, in the model's own order.

    ``trained`` are the names of its parameters; the others are buffers, such as running statistics.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    trained: tuple[str, ...] = ()

    kind = Weights.kind
    codecs = tuple(CODECS)

    def arrays(self, codec: str) -> Mapping[str, TensorSpec]:
        """Return the tensors in a codec, which are lent."""
        return self._arrays[codec]

    @cached_property
    def _arrays(self) -> dict[str, dict[str, TensorSpec]]:
        each = [*zip(self.names, self.shapes, self.dtypes, strict=True)]
        return {
            codec: {
                _named(name): TensorSpec(
                    shape, dtype=dtype, coder=plain(dtype, _float_codec(codec), lent=True)
                )
                for name, shape, dtype in each
            }
            for codec in CODECS
        }

    def payload_of(self, tensors: Found, codec: str, header: Header) -> Weights:
        """Return the state in the model's own dtypes: views of what came, copied on access."""
        named = dict(zip(self.names, tensors.values(), strict=True))
        return Weights(CopyOnWriteTensors(named), codec)

    @classmethod
    def of(cls, model: nn.Module) -> WeightsSpec:
        """Read the specification off ``model``."""
        state = model.state_dict()
        return cls(
            names=tuple(state),
            shapes=tuple(tuple(t.shape) for t in state.values()),
            dtypes=tuple(t.dtype for t in state.values()),
            trained=tuple(name for name, _ in model.named_parameters() if name in state),
        )

    @property
    def parameters(self) -> WeightsSpec:
        """The parameters alone, of which control variates and gradients are."""
        return self.only(self.trained)

    def only(self, names: Collection[str]) -> WeightsSpec:
        """Return the specification of those of ``names`` that there are, in the model's order."""
        chosen = [i for i, name in enumerate(self.names) if name in names]
        return WeightsSpec(
            names=tuple(self.names[i] for i in chosen),
            shapes=tuple(self.shapes[i] for i in chosen),
            dtypes=tuple(self.dtypes[i] for i in chosen),
            trained=tuple(name for name in self.trained if name in names),
        )

    def zeros(self) -> Weights:
        """Return 0 everywhere."""
        parts = zip(self.names, self.shapes, self.dtypes, strict=True)
        return Weights({name: torch.zeros(shape, dtype=dtype) for name, shape, dtype in parts})


# ---- lent ----------------------------------------------------------------------------------------
# Tensors over memory of another owner: read in place, and copied on access.


class CopyOnWriteTensors(Mapping[str, Tensor]):
    """Tensors by name, each copied on first access, so that it may be written to.

    Bytes that arrive are shared: by the server with the devices of its process, and by these with each other. Most of
    what is done with weights reads them, or copies them anyway; that goes by :meth:`read_only`, and costs no memory.
    """

    def __init__(self, views: Mapping[str, Tensor]) -> None:
        self._now = dict(views)
        self._own: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        """Return a tensor that is this mapping's own, the same one each time; the view of it is let go."""
        if name not in self._own:
            self._now[name] = self._now[name].clone()
            self._own.add(name)
        return self._now[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now)

    def __len__(self) -> int:
        return len(self._now)

    def read_only(self) -> Mapping[str, Tensor]:
        """Return the tensors as they are at present; they are not to be written to."""
        return self._now
