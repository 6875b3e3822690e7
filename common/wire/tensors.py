"""A few tensors by name, of shapes and bounds that a run states: what needs no form of payload of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from common.errors import PayloadError
from common.wire.codec import encoded_bytes, frame, require_count, require_finite, unframe
from common.wire.compression import Arrival, NDArray
from common.wire.values import require_shape

DTYPES = (torch.float32, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool)
"""What a tensor can travel as."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor: its shape, the least and the largest value that it may hold, and its dtype, one of ``DTYPES``.

    ``-math.inf`` and ``math.inf`` leave a float without a bound; it is finite in any case.
    """

    shape: tuple[int, ...]
    least: float
    most: float
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        """Refuse a form that nothing can have: a mistake of the method's, told where it is made."""
        if self.dtype not in DTYPES:
            names = ", ".join(str(one).removeprefix("torch.") for one in DTYPES)
            raise ValueError(f"a tensor travels as {names}, not as {self.dtype}")
        if not self.least <= self.most or min(self.shape, default=0) < 0:
            raise ValueError(f"no tensor is like this: {self}")

    @property
    def name(self) -> str:
        """The dtype's name, which NumPy has too."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def bounds(self) -> tuple[float, float]:
        """The bounds as the dtype rounds them: what a site cut at one of them is not beyond it."""
        if not self.dtype.is_floating_point:
            return self.least, self.most
        least, most = torch.tensor((self.least, self.most), dtype=self.dtype).tolist()
        return least, most

    @property
    def nbytes(self) -> int:
        """The bytes of its values."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class TensorsSpec:
    """The tensors by name, in their order: all of them come, and nothing else."""

    tensors: Mapping[str, TensorSpec]

    @property
    def payload(self) -> type[Tensors]:
        """Tensors."""
        return Tensors

    @property
    def max_bytes(self) -> int:
        """The bytes of all values and of the header."""
        return encoded_bytes(*(one.nbytes for one in self.tensors.values()))


@dataclass(frozen=True)
class Tensors:
    """Tensors by name, in the spec's order."""

    tensors: Mapping[str, Tensor]

    kind: ClassVar[str] = "tensors"

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    @property
    def floats(self) -> int:
        """The number of values that are floating-point numbers."""
        return sum(t.numel() for t in self.tensors.values() if t.is_floating_point())

    def encode(self, compression: str = "none") -> list[NDArray]:
        """Return the header, with the names, and each tensor's values; PayloadError if one is not finite."""
        values = []
        for name, tensor in self.tensors.items():
            tensor = tensor.detach().cpu().contiguous()
            require_finite(name, tensor)
            values.append(tensor.numpy())
        return frame(self.kind, {"names": ",".join(self.tensors)}, values, compression)

    @classmethod
    def decode(cls, arrays: Sequence[NDArray], spec: TensorsSpec) -> Self:
        """Rebuild the tensors; PayloadError unless names, dtypes and shapes are the spec's, and values in bounds."""
        header, body = unframe(cls.kind, arrays)
        if header.get("names") != ",".join(spec.tensors):
            raise PayloadError(
                f"it holds {str(header.get('names'))[:80]!r} where {','.join(spec.tensors)} was expected"
            )
        require_count(cls.kind, body, len(spec.tensors))
        named = zip(spec.tensors.items(), body, strict=True)
        return cls({name: _read(name, array, one) for (name, one), array in named})


def _read(name: str, array: Arrival, spec: TensorSpec) -> Tensor:
    """Return one tensor; its values are expanded once dtype and shape are right."""
    require_shape(name, array, spec.shape, spec.name)
    values = array.values()
    if spec.dtype == torch.bool:
        # A byte that is neither 0 nor 1 would be true here and false there.
        values = values.view(np.uint8) != 0
    tensor = torch.from_numpy(np.array(values))
    require_finite(name, tensor)
    if tensor.numel():
        low, high = tensor.min().item(), tensor.max().item()
        least, most = spec.bounds
        if low < least or high > most:
            raise PayloadError(
                f"{name} holds {low if low < least else high:.6g} where {least:.6g} to {most:.6g} is allowed"
            )
    return tensor
