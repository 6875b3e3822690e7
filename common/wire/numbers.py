"""A few whole numbers by name, such as how many images a site is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from common.errors import PayloadError
from common.wire.codec import MAX_HEADER_BYTES, frame, require_count, unframe
from common.wire.compression import NDArray


@dataclass(frozen=True)
class NumbersSpec:
    """The names, each with the least and the largest value that it may have."""

    bounds: Mapping[str, tuple[int, int]]

    @property
    def payload(self) -> type[Numbers]:
        """Numbers."""
        return Numbers

    @property
    def max_bytes(self) -> int:
        """The bytes of the header, in which they travel."""
        return 2 * MAX_HEADER_BYTES


@dataclass(frozen=True)
class Numbers:
    """Whole numbers by name."""

    values: Mapping[str, int]

    kind: ClassVar[str] = "numbers"

    @property
    def floats(self) -> int:
        """None: they are part of no model and of no image."""
        return 0

    def encode(self, compression: str = "none") -> list[NDArray]:
        """Return the header, which holds them."""
        return frame(self.kind, {"values": dict(self.values)}, [], compression)

    @classmethod
    def decode(cls, arrays: Sequence[NDArray], spec: NumbersSpec) -> Self:
        """Read them.

        Raises
        ------
        PayloadError
            If a name is missing or unknown, or a value is no whole number within its bounds.
        """
        header, body = unframe(cls.kind, arrays)
        require_count(cls.kind, body, 0)
        found = header.get("values")
        if not isinstance(found, dict) or set(found) != set(spec.bounds):
            raise PayloadError(f"{', '.join(spec.bounds)} were expected, each with a number")
        for name, (least, most) in spec.bounds.items():
            value = found[name]
            if type(value) is not int or not least <= value <= most:
                raise PayloadError(
                    f"{name} is {str(value)[:40]} where {least} to {most} is allowed"
                )
        return cls({name: found[name] for name in spec.bounds})
