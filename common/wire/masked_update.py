"""A random part of an update: the numbers that a mask keeps, and the seed that the mask is drawn from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from torch import Tensor

from common.errors import PayloadError
from common.wire.codec import (
    choose,
    encoded_bytes,
    frame,
    require_count,
    require_finite,
    unframe,
)
from common.wire.compression import NDArray
from common.wire.values import FLOAT_CODECS, pack, unpack
from synth.sparse_updates import mask

VALUES = "the set of kept values"
SEED_BITS = 63


@dataclass(frozen=True)
class MaskedUpdateSpec:
    """An update of ``total`` numbers, of which a mask keeps each with probability 1 / ``rate``."""

    total: int
    rate: float

    @property
    def payload(self) -> type[MaskedUpdate]:
        """MaskedUpdate."""
        return MaskedUpdate

    @property
    def max_bytes(self) -> int:
        """The bytes of more values, in float32, than any mask keeps: twelve standard deviations above the mean."""
        mean = self.total / self.rate
        kept = math.ceil(mean + 12 * math.sqrt(mean) + 12)
        return encoded_bytes(4 * min(self.total, kept))


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

    def encode(self, compression: str = "none") -> list[NDArray]:
        """Return the header, with the seed, and the values; PayloadError if one cannot travel."""
        fields = {"codec": self.codec, "seed": self.seed}
        return frame(self.kind, fields, [pack(VALUES, self.values, self.codec)], compression)

    @classmethod
    def decode(cls, arrays: Sequence[NDArray], spec: MaskedUpdateSpec) -> Self:
        """Rebuild values and seed; PayloadError unless these are its mask's number, of the codec and finite."""
        header, body = unframe(cls.kind, arrays)
        codec = choose(header, "codec", FLOAT_CODECS)
        seed = _read_seed(header)
        require_count(cls.kind, body, 1)
        kept = int(mask(spec.total, spec.rate, seed).sum())
        values = unpack(VALUES, body[0], (kept,), codec)
        require_finite(f"{VALUES}, times the rate,", values * spec.rate)
        return cls(values, seed, codec)

    def coordinates(self, spec: MaskedUpdateSpec) -> tuple[Tensor, Tensor]:
        """Return the places that were sent, int64 [kept], and float64 values there, scaled so as to be unbiased.

        Over the seeds, rate x value at a kept place and 0 elsewhere has the update as its mean.
        """
        places = mask(spec.total, spec.rate, self.seed).nonzero().flatten()
        return places, self.values.double() * spec.rate


def _read_seed(header: Mapping[str, Any]) -> int:
    seed = header.get("seed")
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**SEED_BITS:
        raise PayloadError(
            f"the mask's seed is {str(seed)[:40]!r} where an integer of {SEED_BITS} bits was expected"
        )
    return seed
