"""A few tensors by name, of shapes and bounds that a run states: what needs no form of payload of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from common.errors import PayloadError
from common.wire.codec import (
    FLOAT_CODECS,
    AnyArray,
    describe,
    encoded_bytes,
    frame,
    pack,
    pack_classes,
    require_count,
    require_finite,
    require_one_of,
    require_shape,
    unframe,
    unpack_classes,
)

DTYPES = (
    torch.float32,
    torch.float16,
    torch.float64,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
)
"""What a tensor can travel as."""

KIND = "tensors"
"""The kind of a payload whose header has the names, and whose tensors travel in their own dtypes."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor: its shape, the least and the largest value that it may hold, and its dtype, one of ``DTYPES``.

    ``-math.inf`` and ``math.inf`` leave a float without a bound; it is finite in any case. Where the first dimension
    ``varies``, the shape's is the most rows that may come, and all such tensors of a payload have as many.
    """

    shape: tuple[int, ...]
    least: float
    most: float
    dtype: torch.dtype = torch.float32
    varies: bool = False

    def __post_init__(self) -> None:
        """Refuse a form that nothing can have: a mistake of the method's, told where it is made."""
        if self.dtype not in DTYPES:
            names = ", ".join(str(one).removeprefix("torch.") for one in DTYPES)
            raise ValueError(f"a tensor travels as {names}, not as {self.dtype}")
        sides = min(self.shape, default=-1 if self.varies else 0)
        if not self.least <= self.most or sides < 0:
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
        """The most bytes of its values."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Tensors:
    """Tensors by name, in the spec's order; ``kind`` is the spec's, and a compact one of floats has a ``codec``."""

    tensors: Mapping[str, Tensor]
    kind: str = KIND
    codec: str = field(default="", compare=False)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    @property
    def setting(self) -> tuple[str, str]:
        """What says how they travel: ``wire.latents`` where they have a codec."""
        return ("latents", "latents") if self.codec else ("", "")

    @property
    def floats(self) -> int:
        """The number of values that are floating-point numbers."""
        return sum(t.numel() for t in self.tensors.values() if t.is_floating_point())

    def encode(self) -> list[AnyArray]:
        """Return the header and each tensor's values; PayloadError if one is not finite or cannot travel."""
        fields = {"codec": self.codec} if self.codec else {}
        if self.kind == KIND:
            fields = {"names": ",".join(self.tensors)}
        return frame(self.kind, fields, [*map(self._array, self.tensors.items())])

    def _array(self, item: tuple[str, Tensor]) -> AnyArray:
        name, tensor = item
        if self.codec and tensor.is_floating_point():
            return pack(name, tensor, self.codec)
        if self.kind != KIND and tensor.dtype == torch.int64:
            return pack_classes(tensor)
        tensor = tensor.detach().cpu().contiguous()
        require_finite(name, tensor)
        return np.asarray(tensor.numpy())

    @classmethod
    def decode(cls, arrays: Sequence[AnyArray], spec: TensorsSpec) -> Self:
        """Rebuild the tensors; PayloadError unless header, dtypes and shapes are the spec's, and values in bounds."""
        header, body = unframe(spec.kind, arrays)
        codec, names = "", ",".join(spec.tensors)
        if spec.kind != KIND and any(t.dtype.is_floating_point for t in spec.tensors.values()):
            codec = require_one_of(header, "codec", FLOAT_CODECS)
        elif spec.kind == KIND and header.get("names") != names:
            raise PayloadError(
                f"it holds {str(header.get('names'))[:80]!r} where {names} was expected"
            )
        require_count(spec.kind, body, len(spec.tensors))
        rows: int | None = None
        found = {}
        for (name, one), array in zip(spec.tensors.items(), body, strict=True):
            travels = _travels(one, codec, compact=spec.kind != KIND)
            shape = one.shape
            if one.varies:
                rows = _rows(name, array, shape, travels) if rows is None else rows
                shape = (rows, *shape[1:])
            found[name] = _read(name, array, shape, one, travels)
        made = cls(found, spec.kind, codec)
        if spec.require is not None:
            spec.require(made)
        return made


@dataclass(frozen=True)
class TensorsSpec:
    """The tensors by name, in their order: all of them come, and nothing else.

    ``require`` raises PayloadError for tensors that are each as stated and do not go together. A form with a ``kind``
    of its own is compact: int64 of it travel in the smallest type that holds them, floats in the codec that its header
    says instead of names.
    """

    tensors: Mapping[str, TensorSpec]
    kind: str = KIND
    require: Callable[[Tensors], object] | None = None

    payload: ClassVar[type[Tensors]] = Tensors

    @property
    def max_bytes(self) -> int:
        """The most bytes of all values and of the header."""
        return encoded_bytes(*(one.nbytes for one in self.tensors.values()))


def _travels(spec: TensorSpec, codec: str, *, compact: bool) -> str:
    """Return the dtype that a tensor travels in, or ``integers`` for any of these."""
    if compact and spec.dtype == torch.int64:
        return "integers"
    return codec if codec and spec.dtype.is_floating_point else spec.name


def _rows(name: str, array: AnyArray, shape: tuple[int, ...], travels: str) -> int:
    """Return how many rows came of a tensor whose first dimension varies."""
    most, *others = shape
    if array.ndim != len(shape) or [*array.shape[1:]] != others or array.shape[0] > most:
        sides = ", ".join(["n", *map(str, others)]) if others else "n,"
        raise PayloadError(
            f"{name} is {describe(array)} where {travels} of shape ({sides}), n at most {most}, was expected"
        )
    return int(array.shape[0])


def _read(
    name: str, array: AnyArray, shape: tuple[int, ...], spec: TensorSpec, travels: str
) -> Tensor:
    """Return one tensor; its values are expanded once dtype and shape are right."""
    if travels == "integers":
        return unpack_classes(name, array, shape, int(spec.most) + 1)
    require_shape(name, array, shape, travels)
    if spec.dtype == torch.bool:
        # A byte that is neither 0 nor 1 would be true here and false there.
        array = array.view(np.uint8) != 0
    tensor = torch.from_numpy(np.array(array)).to(spec.dtype)
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

CLASS_LIST = "the list of classes"


def class_list_spec(classes: int, most: int) -> TensorsSpec:
    """Return the form of a list of at most ``most`` of ``classes``, no one twice, possibly none."""
    one = TensorSpec((most,), 0, classes - 1, torch.int64, varies=True)
    return TensorsSpec({CLASS_LIST: one}, "class-list", _require_distinct)


def class_list(classes: Sequence[int]) -> Tensors:
    """Return distinct classes, in the sender's order."""
    return Tensors({CLASS_LIST: torch.tensor(classes, dtype=torch.int64)}, "class-list")


def _require_distinct(sent: Tensors) -> None:
    classes = sent[CLASS_LIST].tolist()
    twice = next((c for i, c in enumerate(classes) if c in classes[:i]), None)
    if twice is not None:
        raise PayloadError(f"{CLASS_LIST} names {twice} twice where each was expected once")


# ---- latent means --------------------------------------------------------------------------------
# Labelled vectors of a latent space: the noisy means of a site's classes, which FedDPMS hands to another site.

VECTORS, LABELS = "the set of latent means", "the set of their labels"


def latent_means_spec(
    dimension: int, classes: int, each: int, kinds: int, limit: float = math.inf
) -> TensorsSpec:
    """Return the form of labelled vectors, possibly none.

    Parameters
    ----------
    dimension, classes : int
        The length of a vector, and the number of classes of which its label is one.
    each, kinds : int
        The most vectors of one class, and of how many classes there may be any.
    limit : float
        The largest magnitude of a number.
    """
    most = each * min(kinds, classes)
    forms = {
        VECTORS: TensorSpec((most, dimension), -limit, limit, varies=True),
        LABELS: TensorSpec((most,), 0, classes - 1, torch.int64, varies=True),
    }
    return TensorsSpec(forms, "latent-means", lambda sent: _require_counts(sent, each, kinds))


def latent_means(vectors: Tensor, labels: Tensor, codec: str = "float32") -> Tensors:
    """Return vectors, float32 [N, l], with labels, int64 [N], as they travel; N may be 0."""
    return Tensors({VECTORS: vectors, LABELS: labels}, "latent-means", codec)


def _require_counts(sent: Tensors, each: int, kinds: int) -> None:
    counts = torch.bincount(sent[LABELS])
    counts = counts[counts > 0]
    if len(counts) > kinds:
        raise PayloadError(
            f"latent means of {len(counts)} classes were sent where at most {kinds} are allowed"
        )
    most = int(counts.max()) if len(counts) else 0
    if most > each:
        raise PayloadError(
            f"{most} latent means of one class were sent where at most {each} are allowed"
        )
