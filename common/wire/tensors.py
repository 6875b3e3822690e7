"""A few tensors by name, of shapes and bounds that a run states: what needs no form of payload of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from common.errors import PayloadError
from common.wire.codec import (
    FLOAT_CODECS,
    choose,
    describe,
    encoded_bytes,
    frame,
    pack,
    pack_classes,
    require_count,
    require_finite,
    require_shape,
    unframe,
    unpack,
    unpack_classes,
)
from common.wire.compression import AnyArray, Arrival

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

    def encode(self, compression: str = "none") -> list[AnyArray]:
        """Return the header, with the names, and each tensor's values; PayloadError if one is not finite."""
        values = []
        for name, tensor in self.tensors.items():
            tensor = tensor.detach().cpu().contiguous()
            require_finite(name, tensor)
            values.append(tensor.numpy())
        return frame(self.kind, {"names": ",".join(self.tensors)}, values, compression)

    @classmethod
    def decode(cls, arrays: Sequence[AnyArray], spec: TensorsSpec) -> Self:
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


# ---- class list ----------------------------------------------------------------------------------
# Some of the classes in their sender's order, such as those that a site has fewest of, fewest first.

CLASSES = "the list of classes"


@dataclass(frozen=True)
class ClassListSpec:
    """What a receiver of a list of classes accepts: at most ``most`` of ``classes``, no one twice, possibly none."""

    classes: int
    most: int

    @property
    def payload(self) -> type[ClassList]:
        """ClassList."""
        return ClassList

    @property
    def max_bytes(self) -> int:
        """The bytes of as many classes as there may be."""
        return encoded_bytes(8 * self.most)


@dataclass(frozen=True)
class ClassList:
    """Distinct classes, in the sender's order."""

    classes: tuple[int, ...]

    kind: ClassVar[str] = "class-list"

    @property
    def floats(self) -> int:
        """None: a class is a label."""
        return 0

    def encode(self, compression: str = "none") -> list[AnyArray]:
        """Return the header and the classes, in the smallest integer type that holds them."""
        classes = pack_classes(torch.tensor(self.classes, dtype=torch.int64))
        return frame(self.kind, {}, [classes], compression)

    @classmethod
    def decode(cls, arrays: Sequence[AnyArray], spec: ClassListSpec) -> Self:
        """Rebuild the list; PayloadError if count, dtype, shape, classes or number are not as ``spec`` allows."""
        _, body = unframe(cls.kind, arrays)
        require_count(cls.kind, body, 1)
        (sent,) = body
        if sent.ndim != 1 or sent.shape[0] > spec.most:
            raise PayloadError(
                f"{CLASSES} is {describe(sent)} where integers of shape (n,), n at most {spec.most}, were expected"
            )
        classes = tuple(unpack_classes(CLASSES, sent, sent.shape, spec.classes).tolist())
        twice = next((c for i, c in enumerate(classes) if c in classes[:i]), None)
        if twice is not None:
            raise PayloadError(f"{CLASSES} names {twice} twice where each was expected once")
        return cls(classes)


# ---- latent means --------------------------------------------------------------------------------
# Labelled vectors of a latent space: the noisy means of a site's classes, which FedDPMS hands to another site.

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
    setting: ClassVar[tuple[str, str]] = ("latents", "latents")

    @property
    def floats(self) -> int:
        """The number of the vectors' components, as FedDPMS counts its overhead."""
        return self.vectors.numel()

    def encode(self, compression: str = "none") -> list[AnyArray]:
        """Return the header, the vectors and the labels; PayloadError if a component cannot travel."""
        vectors = pack(VECTORS, self.vectors, self.codec)
        labels = pack_classes(self.labels)
        return frame(self.kind, {"codec": self.codec}, [vectors, labels], compression)

    @classmethod
    def decode(cls, arrays: Sequence[AnyArray], spec: LatentMeansSpec) -> Self:
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
