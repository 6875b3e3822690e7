"""Labelled vectors of a latent space: the noisy means of a site's classes, which FedDPMS hands to another site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
from torch import Tensor

from common.errors import PayloadError
from common.wire.codec import choose, describe, encoded_bytes, frame, require_count, unframe
from common.wire.compression import Arrival, NDArray
from common.wire.values import FLOAT_CODECS, pack, pack_classes, unpack, unpack_classes

VECTORS, LABELS = "the set of latent means", "the set of their labels"


@dataclass(frozen=True)
class LatentMeansSpec:
    """What a receiver of latent means accepts.

    ``dimension`` is the length of a vector, one of ``classes`` its label. There are at most ``each`` vectors of one
    class and vectors of at most ``kinds`` classes, which bounds the set; it may be empty.
    """

    dimension: int
    classes: int
    each: int
    kinds: int

    @property
    def max_vectors(self) -> int:
        """The most vectors of the whole set."""
        return self.each * min(self.kinds, self.classes)

    @property
    def payload(self) -> type[LatentMeans]:
        """LatentMeans."""
        return LatentMeans

    @property
    def max_bytes(self) -> int:
        """The bytes of as many vectors as there may be, in float32, and of their labels."""
        return encoded_bytes(4 * self.max_vectors * self.dimension, 8 * self.max_vectors)


@dataclass(frozen=True)
class LatentMeans:
    """Vectors float32 [N, l], with labels int64 [N]; N may be 0."""

    vectors: Tensor
    labels: Tensor
    codec: str = field(default="float32", compare=False)

    kind: ClassVar[str] = "latent-means"

    @property
    def floats(self) -> int:
        """The number of the vectors' components, as FedDPMS counts its overhead."""
        return self.vectors.numel()

    def encode(self, compression: str = "none") -> list[NDArray]:
        """Return the header, the vectors and the labels; PayloadError if a component cannot travel."""
        vectors = pack(VECTORS, self.vectors, self.codec)
        labels = pack_classes(self.labels)
        return frame(self.kind, {"codec": self.codec}, [vectors, labels], compression)

    @classmethod
    def decode(cls, arrays: Sequence[NDArray], spec: LatentMeansSpec) -> Self:
        """Rebuild the set; PayloadError if count, dtype, shape, labels, numbers or values break ``spec``."""
        header, body = unframe(cls.kind, arrays)
        codec = choose(header, "codec", FLOAT_CODECS)
        require_count(cls.kind, body, 2)
        n = _check_vectors(body[0], codec, spec)
        labels = unpack_classes(LABELS, body[1], (n,), spec.classes)
        _check_counts(labels, spec)
        return cls(unpack(VECTORS, body[0], (n, spec.dimension), codec), labels, codec)


def _check_vectors(vectors: Arrival, codec: str, spec: LatentMeansSpec) -> int:
    if vectors.dtype.name != codec or vectors.ndim != 2 or vectors.shape[1] != spec.dimension:
        raise PayloadError(
            f"the latent means are {describe(vectors)} where {codec} of shape (n, {spec.dimension}) was expected"
        )
    n = vectors.shape[0]
    if n > spec.max_vectors:
        raise PayloadError(
            f"{n} latent means were sent where at most {spec.max_vectors} are allowed"
        )
    return n


def _check_counts(labels: Tensor, spec: LatentMeansSpec) -> None:
    counts = torch.bincount(labels)
    counts = counts[counts > 0]
    if len(counts) > spec.kinds:
        raise PayloadError(
            f"latent means of {len(counts)} classes were sent where at most {spec.kinds} are allowed"
        )
    most = int(counts.max()) if len(counts) else 0
    if most > spec.each:
        raise PayloadError(
            f"{most} latent means of one class were sent where at most {spec.each} are allowed"
        )
