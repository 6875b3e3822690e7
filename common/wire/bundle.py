"""Several payloads in one: each part keeps its own header, codec and checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, TypeVar

from common.errors import PayloadError
from common.wire.form import Payload, Spec
from common.wire.frame import MAX_HEADER_BYTES, frame, unframe
from common.wire.npy import AnyArray

P = TypeVar("P")

DecodePart = Callable[[str, Sequence[AnyArray], Spec], Payload]


@dataclass(frozen=True)
class Bundle:
    """Payloads by name.

    The arrays that are sent are a header with the number of arrays of each part, then the parts as each encodes itself:
    a part that goes to many receivers is serialised once.
    """

    parts: Mapping[str, Payload]

    kind: ClassVar[str] = "bundle"

    def part(self, name: str, cls: type[P]) -> P:
        """Return the part ``name``, which its specification says is a ``cls``."""
        found = self.parts[name]
        assert isinstance(found, cls)
        return found

    def leaves(self) -> Iterator[Payload]:
        """Return the parts that are no bundles, those of bundles inside too."""
        return (part for _, part in leaves(self))

    @property
    def floats(self) -> int:
        """The sum of the parts'."""
        return sum(part.floats for part in self.parts.values())

    def encode(self) -> list[AnyArray]:
        """Return the header, then each part's arrays."""
        each = {name: part.encode() for name, part in self.parts.items()}
        head = self.head({name: len(arrays) for name, arrays in each.items()})
        return [head, *chain.from_iterable(each.values())]

    @classmethod
    def head(cls, counts: Mapping[str, int]) -> AnyArray:
        """Return the header of parts with so many arrays each."""
        return frame(cls.kind, {"parts": [[name, count] for name, count in counts.items()]}, [])[0]


@dataclass(frozen=True)
class BundleSpec:
    """The parts by name, in their order; those of ``optional`` may be missing."""

    parts: Mapping[str, Spec]
    optional: frozenset[str] = frozenset()

    @property
    def max_bytes(self) -> int:
        """The bytes of all parts and of the header in front of them."""
        return 2 * MAX_HEADER_BYTES + sum(spec.max_bytes for spec in self.parts.values())

    def decode(self, arrays: Sequence[AnyArray], part: DecodePart | None = None) -> Bundle:
        """Rebuild every part by its own specification; ``part`` does so in another way, of a name, arrays and that."""
        header, body = unframe(Bundle.kind, arrays)
        counts = _counts(header.get("parts"), len(body))
        wanted = [name for name in self.parts if name in counts or name not in self.optional]
        if list(counts) != wanted:
            raise PayloadError(
                f"the bundle holds {_named(counts)} where {_named(self.parts)} "
                f"{'was' if len(self.parts) == 1 else 'were'} expected"
            )
        parts: dict[str, Payload] = {}
        start = 0
        for name, count in counts.items():
            spec, own = self.parts[name], body[start : start + count]
            try:
                parts[name] = part(name, own, spec) if part else spec.decode(own)
            except PayloadError as error:
                raise PayloadError(f"its part '{name}': {error}") from None
            start += count
        return Bundle(parts)


def leaves(found: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the parts of a payload or of a spec that are no bundles, by their path; empty for one that is alone."""
    parts = found.parts if isinstance(found, Bundle | BundleSpec) else None
    if parts is None:
        yield path, found
        return
    for name, part in parts.items():
        yield from leaves(part, f"{path}/{name}" if path else name)


def _counts(found: Any, there: int) -> dict[str, int]:
    """Return the number of arrays by part, which together are all that are ``there``."""
    try:
        counts = {str(name): int(count) for name, count in found}
    except (TypeError, ValueError, OverflowError):
        raise PayloadError("the header of the bundle does not name its parts") from None
    if min(counts.values(), default=0) < 0 or sum(counts.values()) != there:
        raise PayloadError(
            f"the bundle's header speaks of {sum(counts.values())} arrays, {there} are there"
        )
    return counts


def _named(names: Any) -> str:
    return ", ".join(str(name)[:40] for name in names)[:200] or "nothing"
