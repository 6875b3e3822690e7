"""The form of a payload: which arrays come, what each may hold, and what is made of them.

Every kind of payload states its arrays as `TensorSpec`; one loop reads them all, and checks count, dtype, shape, rows,
finiteness and bounds. What the values mean together is then the kind's own check.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from common.errors import PayloadError
from common.wire.coders import Coder, Header, Shape, plain, require_finite
from common.wire.frame import codec_in, describe, encoded_bytes, frame, unframe
from common.wire.npy import AnyArray

DTYPES = (
    torch.float32,
    torch.float16,
    torch.float64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
)
"""The dtypes that a tensor can be sent in."""

Found = Mapping[str, Tensor]
"""The tensors of a payload, by what an error calls them."""

P = TypeVar("P", bound="Payload")


class Payload(Protocol):
    """A small data class that is sent."""

    @property
    def kind(self) -> str:
        """Its name in the header."""
        ...

    def encode(self) -> list[AnyArray]:
        """Return the arrays to send, the header first; PayloadError if a value cannot be encoded."""
        ...

    @property
    def floats(self) -> int:
        """The number of values as the papers count a message: weights or pixels, no labels or headers."""
        ...


@runtime_checkable
class CarriesExamples(Protocol):
    """A payload with examples that represent the site's own, with or without other content."""

    @property
    def examples(self) -> Tensor:
        """Float32 [n, *shape], in the model's normalised space."""
        ...


class Spec(Protocol):
    """The form that a receiver expects; it alone decides how a payload is decoded."""

    @property
    def max_bytes(self) -> int:
        """The most bytes of such a payload, header included; what takes more is not even read."""
        ...

    def decode(self, arrays: Sequence[AnyArray]) -> Payload:
        """Return the payload that ``arrays`` encode, the one that was sent or its decoded form.

        PayloadError, naming what was expected, unless version, count, dtypes, shapes, finiteness and limits are all as
        stated.
        """
        ...


@dataclass(frozen=True)
class TensorSpec:
    """One tensor: its shape, the least and the largest value that it may hold, its dtype, and how it is encoded.

    ``-math.inf`` and ``math.inf`` leave a float without a bound; it is finite in any case. Where the first dimension
    ``varies``, the shape's is the most rows that may come, and all such tensors of a payload have as many. Without a
    ``coder`` it is sent in its dtype, one of `DTYPES`.
    """

    shape: Shape
    least: float = -math.inf
    most: float = math.inf
    dtype: torch.dtype = torch.float32
    varies: bool = False
    coder: Coder | None = None

    def __post_init__(self) -> None:
        """Refuse an impossible form: a mistake of the method's, reported where it is made."""
        if self.dtype not in DTYPES:
            names = ", ".join(str(one).removeprefix("torch.") for one in DTYPES)
            raise ValueError(f"a tensor is sent as {names}, not as {self.dtype}")
        sides = min(self.shape, default=-1 if self.varies else 0)
        if not self.least <= self.most or sides < 0:
            raise ValueError(f"no tensor is like this: {self}")

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """The bounds as the dtype rounds them: what a site cut at one of them is not beyond it."""
        if not self.dtype.is_floating_point:
            return self.least, self.most
        least, most = torch.tensor((self.least, self.most), dtype=self.dtype).tolist()
        return least, most

    @cached_property
    def how(self) -> Coder:
        """Its coder."""
        return self.coder or plain(self.dtype)

    @property
    def max_bytes(self) -> int:
        """The most bytes of its values."""
        return self.how.max_bytes(self.shape)

    def rows_of(self, name: str, array: AnyArray) -> int:
        """Return how many rows came in ``array``, whose first dimension varies; PayloadError unless it may be so."""
        most, *others = self.shape
        if array.ndim != len(self.shape) or [*array.shape[1:]] != others or len(array) > most:
            sides = ", ".join(["n", *map(str, others)]) if others else "n,"
            raise PayloadError(
                f"{name} is {describe(array)} where {self.how.travels_as} of shape ({sides}), n at most {most}, was "
                "expected"
            )
        return len(array)

    def read(self, name: str, array: AnyArray, rows: int, header: Header) -> Tensor:
        """Return the tensor; PayloadError unless its dtype, shape and values are right."""
        shape = (rows, *self.shape[1:]) if self.varies else self.shape
        tensor = self.how.unpack(name, array, shape, header)
        require_finite(name, tensor)
        least, most = self.bounds
        if (least > -math.inf or most < math.inf) and tensor.numel():
            low, high = tensor.min().item(), tensor.max().item()
            if low < least or high > most:
                raise PayloadError(
                    f"{name} holds {low if low < least else high:.6g} where {least:.6g} to {most:.6g} is allowed"
                )
        return tensor


class Form(ABC, Generic[P]):
    """A specification by the arrays that come: a kind of payload states these, and what it makes of them."""

    kind: str

    @property
    def codecs(self) -> Sequence[str]:
        """The codecs of floating values that the header may name; empty if it names none."""
        return ()

    @abstractmethod
    def arrays(self, codec: str) -> Mapping[str, TensorSpec]:
        """Return the arrays in a codec by what an error calls them, in their order."""

    @abstractmethod
    def payload_of(self, tensors: Found, codec: str, header: Header) -> P:
        """Return the payload; PayloadError for tensors that are each as stated and do not go together."""

    @cached_property
    def max_bytes(self) -> int:
        """The most bytes of such a payload: those of the codec that takes most."""
        each = (self.arrays(codec).values() for codec in self.codecs or ("",))
        return max(encoded_bytes(*(one.max_bytes for one in arrays)) for arrays in each)

    def decode(self, arrays: Sequence[AnyArray]) -> P:
        """Return the payload that ``arrays`` are; PayloadError unless they are as stated."""
        header, body = unframe(self.kind, arrays)
        codec = codec_in(header, self.codecs) if self.codecs else ""
        specs = self.arrays(codec)
        if len(body) != len(specs):
            raise PayloadError(
                f"the '{self.kind}' holds {len(body)} arrays where {len(specs)} were expected"
            )
        rows = next(
            (
                spec.rows_of(name, array)
                for (name, spec), array in zip(specs.items(), body, strict=True)
                if spec.varies and spec.how.keeps_shape
            ),
            0,
        )
        tensors = {
            name: spec.read(name, array, rows, header)
            for (name, spec), array in zip(specs.items(), body, strict=True)
        }
        return self.payload_of(tensors, codec, header)


def framed(
    kind: str, fields: Mapping[str, Any], tensors: Iterable[tuple[str, Tensor, Coder]]
) -> list[AnyArray]:
    """Return a header with ``fields`` and the tensors as their coders pack them; PayloadError if one is not finite."""
    header, arrays = dict(fields), []
    for name, values, coder in tensors:
        require_finite(name, values)
        arrays.append(coder.pack(name, values, header))
    return frame(kind, header, arrays)


def require_codec(part: Payload, wire: object, codec: str = "") -> None:
    """PayloadError for values in another codec than the run's: what only a wider one holds could not be sent on.

    A part's ``setting`` is a pair: the setting of the run's section ``wire`` that applies to it, and the attribute of
    the section that holds its codec; ``codec``, if given, overrides both.
    """
    setting, which = getattr(part, "setting", ("", ""))
    expected = codec or (getattr(wire, which) if which else "")
    found = getattr(part, "codec", "") or expected
    if expected and found != expected:
        message = f"wire.{setting}={expected}" if setting and not codec else expected
        raise PayloadError(f"it came as {found} where {message} was expected")
