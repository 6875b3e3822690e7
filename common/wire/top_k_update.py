"""Part of an update, and its places in few bytes: the largest numbers, or those that a random mask keeps."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from common.errors import PayloadError
from common.wire.codec import (
    FLOAT_CODECS,
    AnyArray,
    encoded_bytes,
    frame,
    pack,
    require_count,
    require_finite,
    require_one_of,
    require_shape,
    unframe,
    unpack,
)
from synth.sparse_updates import largest, mask, pack_places, places_bytes, unpack_places

VALUES, PLACES = "the set of largest values", "the code of their places"


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

    def encode(self) -> list[AnyArray]:
        """Return the header, the values and the code of their places; PayloadError if a value cannot travel."""
        places = pack_places(self.indices.cpu(), self.total).numpy()
        values = pack(VALUES, self.values, self.codec)
        return frame(self.kind, {"codec": self.codec}, [values, places])

    @classmethod
    def decode(cls, arrays: Sequence[AnyArray], spec: TopKUpdateSpec) -> Self:
        """Rebuild values and places; PayloadError unless k finite ones of the codec at k ascending places."""
        header, body = unframe(cls.kind, arrays)
        codec = require_one_of(header, "codec", FLOAT_CODECS)
        require_count(cls.kind, body, 2)
        values = unpack(VALUES, body[0], (spec.k,), codec)
        require_shape(PLACES, body[1], (places_bytes(spec.total, spec.k),), "uint8")
        code = torch.from_numpy(np.array(body[1]))
        try:
            indices = unpack_places(code, spec.total, spec.k)
        except ValueError as error:
            raise PayloadError(f"{PLACES} gives {error}") from None
        return cls(values, indices, spec.total, codec)

    def coordinates(self) -> tuple[Tensor, Tensor]:
        """Return the places that were sent, int64 [k], and the values there, float64 [k], as they are."""
        return self.indices, self.values.double()


@dataclass(frozen=True)
class TopKUpdateSpec:
    """The ``k`` largest of an update's ``total`` numbers, 1 <= k <= total."""

    total: int
    k: int

    payload: ClassVar[type[TopKUpdate]] = TopKUpdate

    @property
    def max_bytes(self) -> int:
        """The bytes of k values in float32 and of their places."""
        return encoded_bytes(4 * self.k, places_bytes(self.total, self.k))


def payload_bytes(total: int, k: int, codec: str) -> int:
    """Return the bytes of ``k`` values of ``total`` and of their places, without headers; it grows with k."""
    return FLOAT_CODECS[codec].itemsize * k + places_bytes(total, k)


def k_for(total: int, rate: float, codec: str) -> int:
    """Return the largest k whose values and places fit into 1 / ``rate`` of the bytes of all values; 0 if none does.

    Both are counted in ``codec``: masking sends total / rate values on average, so that at one rate and codec the
    two cost the same.
    """
    room = (
        FLOAT_CODECS[codec].itemsize * total / rate * (1 + 1e-12)
    )  # a rate of few digits is seldom a float
    return bisect_right(
        range(1, total + 1), math.floor(room), key=lambda k: payload_bytes(total, k, codec)
    )


def largest_rate(total: int, codec: str) -> float:
    """Return the largest rate of at most three decimals at which ``k_for`` is not 0; below 1 there is none."""
    return (
        math.floor(1000 * FLOAT_CODECS[codec].itemsize * total / payload_bytes(total, 1, codec))
        / 1000
    )


# ---- masked update -------------------------------------------------------------------------------
# A random part of an update: the numbers that a mask keeps, and the seed that the mask is drawn from.

KEPT_VALUES = "the set of kept values"
SEED_BITS = 63


@dataclass(frozen=True)
class MaskedUpdate:
    """The kept values, float32 [kept], unscaled and in the update's order, and the mask's seed."""

    values: Tensor
    seed: int
    codec: str = field(default="float32", compare=False)

    kind: ClassVar[str] = "masked-update"

    @classmethod
    def of(cls, update: Tensor, spec: MaskedUpdateSpec, seed: int, codec: str = "float32") -> Self:
        """Keep of a flat ``update``, [spec.total], what the mask of ``seed`` (0 to 2^63 - 1) keeps."""
        return cls(update.detach().cpu()[mask(spec.total, spec.rate, seed)], seed, codec)

    @property
    def floats(self) -> int:
        """The number of kept values."""
        return self.values.numel()

    def encode(self) -> list[AnyArray]:
        """Return the header, with the seed, and the values; PayloadError if one cannot travel."""
        fields = {"codec": self.codec, "seed": self.seed}
        return frame(self.kind, fields, [pack(KEPT_VALUES, self.values, self.codec)])

    @classmethod
    def decode(cls, arrays: Sequence[AnyArray], spec: MaskedUpdateSpec) -> Self:
        """Rebuild values and seed; PayloadError unless these are its mask's number, of the codec and finite."""
        header, body = unframe(cls.kind, arrays)
        codec = require_one_of(header, "codec", FLOAT_CODECS)
        seed = _read_seed(header)
        require_count(cls.kind, body, 1)
        kept = int(mask(spec.total, spec.rate, seed).sum())
        values = unpack(KEPT_VALUES, body[0], (kept,), codec)
        require_finite(f"{KEPT_VALUES}, times the rate,", values * spec.rate)
        return cls(values, seed, codec)

    def coordinates(self, spec: MaskedUpdateSpec) -> tuple[Tensor, Tensor]:
        """Return the places that were sent, int64 [kept], and float64 values there, scaled so as to be unbiased.

        Over the seeds, rate x value at a kept place and 0 elsewhere has the update as its mean.
        """
        places = mask(spec.total, spec.rate, self.seed).nonzero().flatten()
        return places, self.values.double() * spec.rate


@dataclass(frozen=True)
class MaskedUpdateSpec:
    """An update of ``total`` numbers, of which a mask keeps each with probability 1 / ``rate``."""

    total: int
    rate: float

    payload: ClassVar[type[MaskedUpdate]] = MaskedUpdate

    @property
    def max_bytes(self) -> int:
        """The bytes of more values, in float32, than any mask keeps: twelve standard deviations above the mean."""
        mean = self.total / self.rate
        kept = math.ceil(mean + 12 * math.sqrt(mean) + 12)
        return encoded_bytes(4 * min(self.total, kept))


def _read_seed(header: Mapping[str, Any]) -> int:
    seed = header.get("seed")
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**SEED_BITS:
        raise PayloadError(
            f"the mask's seed is {str(seed)[:40]!r} where an integer of {SEED_BITS} bits was expected"
        )
    return seed
