"""Part of an update, and its places in few bytes: the largest numbers, or those that a random mask keeps."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from common.errors import PayloadError
from common.wire.coders import FLOAT_CODECS, Header, plain, require_finite
from common.wire.form import Form, Found, TensorSpec, framed
from common.wire.npy import AnyArray
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
        """Return the header, the values and the code of their places; PayloadError if a value cannot be sent."""
        places = pack_places(self.indices.cpu(), self.total)
        values = VALUES, self.values, plain(torch.float32, self.codec)
        each = [values, (PLACES, places, plain(torch.uint8))]
        return framed(self.kind, {"codec": self.codec}, each)

    def coordinates(self) -> tuple[Tensor, Tensor]:
        """Return the places that were sent, int64 [k], and the values there, float64 [k], as they are."""
        return self.indices, self.values.double()


@dataclass(frozen=True)
class TopKUpdateSpec(Form[TopKUpdate]):
    """The ``k`` largest of an update's ``total`` numbers, 1 <= k <= total."""

    total: int
    k: int

    kind = TopKUpdate.kind
    codecs = tuple(FLOAT_CODECS)

    def arrays(self, codec: str) -> Mapping[str, TensorSpec]:
        """Return k values, and the code of their places."""
        code = TensorSpec((places_bytes(self.total, self.k),), dtype=torch.uint8)
        return {
            VALUES: TensorSpec((self.k,), coder=plain(torch.float32, codec)),
            PLACES: code,
        }

    def payload_of(self, tensors: Found, codec: str, header: Header) -> TopKUpdate:
        """Return values and places; PayloadError unless the code is of k ascending places."""
        try:
            indices = unpack_places(tensors[PLACES], self.total, self.k)
        except ValueError as error:
            raise PayloadError(f"{PLACES} gives {error}") from None
        return TopKUpdate(tensors[VALUES], indices, self.total, codec)


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
    """Return the largest rate of at most three decimals at which ``k_for`` is not 0; below 1 no rate is."""
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
        """Return the header, with the seed, and the values; PayloadError if one cannot be sent."""
        fields = {"codec": self.codec, "seed": self.seed}
        values = KEPT_VALUES, self.values, plain(torch.float32, self.codec)
        return framed(self.kind, fields, [values])

    def coordinates(self, spec: MaskedUpdateSpec) -> tuple[Tensor, Tensor]:
        """Return the places that were sent, int64 [kept], and float64 values there, scaled so as to be unbiased.

        Over the seeds, rate x value at a kept place and 0 elsewhere has the update as its mean.
        """
        places = mask(spec.total, spec.rate, self.seed).nonzero().flatten()
        return places, self.values.double() * spec.rate


@dataclass(frozen=True)
class MaskedUpdateSpec(Form[MaskedUpdate]):
    """An update of ``total`` numbers, of which a mask keeps each with probability 1 / ``rate``."""

    total: int
    rate: float

    kind = MaskedUpdate.kind
    codecs = tuple(FLOAT_CODECS)

    def arrays(self, codec: str) -> Mapping[str, TensorSpec]:
        """Return the values: no mask keeps more than twelve standard deviations above the mean."""
        mean = self.total / self.rate
        most = min(self.total, math.ceil(mean + 12 * math.sqrt(mean) + 12))
        values = TensorSpec((most,), varies=True, coder=plain(torch.float32, codec))
        return {KEPT_VALUES: values}

    def payload_of(self, tensors: Found, codec: str, header: Header) -> MaskedUpdate:
        """Return values and seed; PayloadError unless these are as many as its mask keeps."""
        seed, values = _read_seed(header), tensors[KEPT_VALUES]
        kept = int(mask(self.total, self.rate, seed).sum())
        if len(values) != kept:
            raise PayloadError(f"{KEPT_VALUES} are {len(values)} where {kept} were expected")
        require_finite(f"{KEPT_VALUES}, times the rate,", values * self.rate)
        return MaskedUpdate(values, seed, codec)


def _read_seed(header: Mapping[str, Any]) -> int:
    seed = header.get("seed")
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**SEED_BITS:
        raise PayloadError(
            f"the mask's seed is {str(seed)[:40]!r} where an integer of {SEED_BITS} bits was expected"
        )
    return seed
