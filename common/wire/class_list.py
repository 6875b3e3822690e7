"""Some of the classes in their sender's order, such as those that a site has fewest of, fewest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from common.errors import PayloadError
from common.wire.codec import describe, encoded_bytes, frame, require_count, unframe
from common.wire.compression import NDArray
from common.wire.values import pack_classes, unpack_classes

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

    def encode(self, compression: str = "none") -> list[NDArray]:
        """Return the header and the classes, in the smallest integer type that holds them."""
        classes = pack_classes(torch.tensor(self.classes, dtype=torch.int64))
        return frame(self.kind, {}, [classes], compression)

    @classmethod
    def decode(cls, arrays: Sequence[NDArray], spec: ClassListSpec) -> Self:
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
