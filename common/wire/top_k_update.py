"""The largest numbers of an update, and their places in the fewest bytes that a simple code needs."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from common.errors import PayloadError
from common.wire.codec import choose, encoded_bytes, frame, require_count, unframe
from common.wire.compression import NDArray
from common.wire.values import FLOAT_CODECS, pack, require_shape, unpack
from synth.sparse_updates import largest, pack_places, places_bytes, unpack_places

VALUES, PLACES = "the set of largest values", "the code of their places"

_BYTES = {"float32": 4, "float16": 2}


@dataclass(frozen=True)
class TopKUpdateSpec:
    """The ``k`` largest of an update's ``total`` numbers, 1 <= k <= total."""

    total: int
    k: int

    @property
    def payload(self) -> type[TopKUpdate]:
        """TopKUpdate."""
        return TopKUpdate

    @property
    def max_bytes(self) -> int:
        """The bytes of k values in float32 and of their places."""
        return encoded_bytes(4 * self.k, places_bytes(self.total, self.k))


@dataclass(frozen=True)
class TopKUpdate:
    """Values float32 [k] at ``indices`` int64 [k], ascending and distinct, of an update of ``total`` numbers."""

    values: Tensor
    indices: Tensor
    total: int
    codec: str = field(default="float32", compare=False)

    kind: ClassVar[str] = "top-k-update"

    @classmethod
    def of(cls, update: Tensor, spec: TopKUpdateSpec, codec: str = "float32") -> Self:
        """Keep the k largest magnitudes of a flat ``update``, [spec.total]; of equal ones the first."""
        update = update.detach().cpu()
        indices = largest(update, spec.k)
        return cls(update[indices], indices, spec.total, codec)

    @property
    def floats(self) -> int:
        """The number of values; their places are no values but cost bytes."""
        return self.values.numel()

    def encode(self, compression: str = "none") -> list[NDArray]:
        """Return the header, the values and the code of their places; PayloadError if a value cannot travel."""
        places = pack_places(self.indices.cpu(), self.total).numpy()
        values = pack(VALUES, self.values, self.codec)
        return frame(self.kind, {"codec": self.codec}, [values, places], compression)

    @classmethod
    def decode(cls, arrays: Sequence[NDArray], spec: TopKUpdateSpec) -> Self:
        """Rebuild values and places; PayloadError unless k finite ones of the codec at k ascending places."""
        header, body = unframe(cls.kind, arrays)
        codec = choose(header, "codec", FLOAT_CODECS)
        require_count(cls.kind, body, 2)
        values = unpack(VALUES, body[0], (spec.k,), codec)
        require_shape(PLACES, body[1], (places_bytes(spec.total, spec.k),), "uint8")
        code = torch.from_numpy(np.array(body[1].values()))
        try:
            indices = unpack_places(code, spec.total, spec.k)
        except ValueError as error:
            raise PayloadError(f"{PLACES} gives {error}") from None
        return cls(values, indices, spec.total, codec)

    def coordinates(self) -> tuple[Tensor, Tensor]:
        """Return the places that were sent, int64 [k], and the values there, float64 [k], as they are."""
        return self.indices, self.values.double()


def payload_bytes(total: int, k: int, codec: str) -> int:
    """Return the bytes of ``k`` values of ``total`` and of their places, without headers; it grows with k."""
    return _BYTES[codec] * k + places_bytes(total, k)


def k_for(total: int, rate: float, codec: str) -> int:
    """Return the largest k whose values and places fit into 1 / ``rate`` of the bytes of all values; 0 if none does.

    Both are counted in ``codec``: masking sends total / rate values on average, so that at one rate and codec the
    two cost the same.
    """
    room = _BYTES[codec] * total / rate * (1 + 1e-12)  # a rate of few digits is seldom a float
    return bisect_right(
        range(1, total + 1), math.floor(room), key=lambda k: payload_bytes(total, k, codec)
    )


def largest_rate(total: int, codec: str) -> float:
    """Return the largest rate of at most three decimals at which ``k_for`` is not 0; below 1 there is none."""
    return math.floor(1000 * _BYTES[codec] * total / payload_bytes(total, 1, codec)) / 1000
