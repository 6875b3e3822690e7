"""A few tensors by name, of shapes and bounds that a run states: what needs no separate form of payload."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from common.errors import PayloadError
from common.wire.coders import FLOAT_CODECS, Classes, Coder, Header, plain
from common.wire.form import Form, Found, TensorSpec, framed
from common.wire.npy import AnyArray

KIND = "tensors"
"""The kind of a payload whose header has the names, and whose tensors are sent in their own dtypes."""


def _coder(dtype: torch.dtype, kind: str, codec: str) -> Coder:
    """Return a tensor's encoding: in a compact kind classes in few bytes, and floats in the codec."""
    return Classes() if kind != KIND and dtype == torch.int64 else plain(dtype, codec)


@dataclass(frozen=True)
class Tensors:
    """Tensors by name, in the spec's order; ``kind`` is the spec's, and compact floats have a ``codec``."""

    tensors: Mapping[str, Tensor]
    kind: str = KIND
    codec: str = field(default="", compare=False)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    @property
    def setting(self) -> tuple[str, str]:
        """The setting of their encoding: ``wire.latents`` if they have a codec."""
        return ("latents", "latents") if self.codec else ("", "")

    @property
    def floats(self) -> int:
        """The number of values that are floating-point numbers."""
        return sum(t.numel() for t in self.tensors.values() if t.is_floating_point())

    def encode(self) -> list[AnyArray]:
        """Return the header and each tensor's values; PayloadError if one is not finite or cannot be sent."""
        fields = {"codec": self.codec} if self.codec else {}
        if self.kind == KIND:
            fields = {"names": ",".join(self.tensors)}
        each = ((n, t, _coder(t.dtype, self.kind, self.codec)) for n, t in self.tensors.items())
        return framed(self.kind, fields, each)


@dataclass(frozen=True)
class TensorsSpec(Form[Tensors]):
    """The tensors by name, in their order: all of them come, and nothing else.

    ``require`` raises PayloadError for tensors that are each as stated and do not go together. A form with another
    ``kind`` is compact: its int64 are sent in the smallest type that holds them, floats in the codec that the header
    says instead of names.
    """

    tensors: Mapping[str, TensorSpec]
    kind: str = KIND
    require: Callable[[Tensors], object] | None = None

    @property
    def codecs(self) -> Sequence[str]:
        """The codecs of compact floats."""
        floats = any(one.dtype.is_floating_point for one in self.tensors.values())
        return tuple(FLOAT_CODECS) if floats and self.kind != KIND else ()

    def arrays(self, codec: str) -> Mapping[str, TensorSpec]:
        """Return the tensors in their encoding."""
        if self.kind == KIND:
            return self.tensors
        each = self.tensors.items()
        return {n: replace(one, coder=_coder(one.dtype, self.kind, codec)) for n, one in each}

    def payload_of(self, tensors: Found, codec: str, header: Header) -> Tensors:
        """Return the tensors; PayloadError unless they have these names and go together."""
        names = ",".join(self.tensors)
        if self.kind == KIND and header.get("names") != names:
            raise PayloadError(
                f"it holds {str(header.get('names'))[:80]!r} where {names} was expected"
            )
        made = Tensors(tensors, self.kind, codec)
        if self.require is not None:
            self.require(made)
        return made


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
    """Return vectors, float32 [N, l], with labels, int64 [N], as they are sent; N may be 0."""
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
