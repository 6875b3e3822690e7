"""What a device that misbehaves makes of its reply: the parts of a payload, and changes of them.

The fuzzers and the tests take a payload apart as a ``Part``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict

from common.wire.bundle import Bundle

Array = np.ndarray[Any, Any]
Arrays = list[Array]
Damage = Callable[[Arrays], Arrays]


def with_header(body: Arrays, /, **fields: object) -> Arrays:
    """Return a payload whose header has these fields instead of its own."""
    header = {**json.loads(body[0].tobytes()), **fields}
    return [np.frombuffer(json.dumps(header).encode(), np.uint8), *body[1:]]


@dataclass
class Part:
    """A payload as it travels: a header, and arrays or, of a bundle, parts by name."""

    head: Array
    arrays: list[Array] = field(default_factory=list)
    parts: dict[str, Part] | None = None

    @classmethod
    def of(cls, arrays: Arrays) -> Part:
        """Read the frames."""
        fields = json.loads(arrays[0].tobytes())
        if fields["kind"] != Bundle.kind:
            return cls(arrays[0], arrays[1:])
        parts, start = {}, 1
        for name, count in fields["parts"]:
            parts[name] = cls.of(arrays[start : start + count])
            start += count
        return cls(arrays[0], parts=parts)

    @property
    def kind(self) -> str:
        """What the header calls it."""
        return str(json.loads(self.head.tobytes())["kind"])

    def encode(self) -> Arrays:
        """Return the arrays, with headers that fit them."""
        if self.parts is None:
            return [self.head, *self.arrays]
        each = {name: part.encode() for name, part in self.parts.items()}
        head = Bundle.head({name: len(arrays) for name, arrays in each.items()})
        return [head, *(array for arrays in each.values() for array in arrays)]

    def named(self, path: str = "") -> Iterator[tuple[str, Part]]:
        """Yield the parts that are not bundles, each with the names that lead to it."""
        if self.parts is None:
            yield path.lstrip("/"), self
        for name, part in (self.parts or {}).items():
            yield from part.named(f"{path}/{name}")

    def leaves(self) -> Iterator[Part]:
        """Yield the parts that are not bundles."""
        return (part for _, part in self.named())

    def bundles(self) -> Iterator[Part]:
        """Yield the bundles, the outermost first."""
        if self.parts is not None:
            yield self
        for part in (self.parts or {}).values():
            yield from part.bundles()

    def copy(self) -> Part:
        """Return one whose arrays can be changed."""
        return Part.of([array.copy() for array in self.encode()])


def with_arrays(change: Callable[[Arrays], Arrays]) -> Any:
    """Return a tamper that changes the reply's arrays."""

    def tamper(instruction: Message, reply: Message) -> Message:
        record = next(iter(reply.content.array_records.values()))
        arrays = change(record.to_numpy_ndarrays())
        metrics = next(iter(reply.content.metric_records.values()))
        content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
        return Message(content, reply_to=instruction)

    return tamper


def nan(arrays: Arrays) -> Arrays:
    return [arrays[0], *(np.full_like(a, np.nan) for a in arrays[1:])]


def with_part(
    part: str, change: Callable[[Array], Array], rounds: Collection[int] = range(1, 99)
) -> Any:
    """Return a tamper that changes the floating values of a bundle's part in some rounds; without a name all values."""

    def spoil(arrays: Arrays) -> Arrays:
        payload = Part.of(arrays)
        for path, leaf in payload.named():
            if not part or path.partition("/")[0] == part:
                leaf.arrays = [
                    change(a).astype(a.dtype) if a.dtype.kind == "f" else a for a in leaf.arrays
                ]
        return payload.encode()

    changed = with_arrays(spoil)

    def tamper(instruction: Message, reply: Message) -> Message:
        asked = int(instruction.metadata.group_id)
        return changed(instruction, reply) if asked in rounds else reply

    return tamper


def away_from_start(factor: float, rounds: Collection[int] = range(1, 99)) -> Any:
    """Return a tamper that sends w_r + ``factor`` (w_k - w_r) for a model w_k that travels alone or comes first."""

    def tamper(instruction: Message, reply: Message) -> Message:
        if int(instruction.metadata.group_id) not in rounds:
            return reply
        given = next(iter(instruction.content.array_records.values())).to_numpy_ndarrays()
        start = [a for a in given if a.dtype.kind == "f"]

        def spoil(arrays: Arrays) -> Arrays:
            places = [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]
            for i, began in zip(places, start, strict=False):
                arrays[i] = began + np.float32(factor) * (arrays[i] - began)
            return arrays

        return with_arrays(spoil)(instruction, reply)

    return tamper
