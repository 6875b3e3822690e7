"""What a device that misbehaves makes of its reply: the parts of a payload, and the changes of them.

The fuzzers, ``hostile_sites``, the contract and the tests take a payload apart as a ``Part``, and change its numbers as
one of ``CHANGES`` does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message

from common.wire.bundle import Bundle

Array = np.ndarray[Any, Any]
Arrays = list[Array]
Damage = Callable[[Arrays], Arrays]
Draw = np.random.Generator

#: new values for old ones, which began as some others (0, where nothing like them was sent), in float64
Change = Callable[[Array, Any, Draw], Any]


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

    def say(self, **fields: object) -> None:
        """Have the header say this instead."""
        (self.head,) = with_header([self.head], **fields)

    def starts(self, asked: Part) -> Iterator[tuple[Part, Part | None]]:
        """Yield the parts that are not bundles, each with the part of the instruction that has its shapes."""
        left = list(asked.leaves())
        for leaf in self.leaves():
            start = next((other for other in left if other.shapes == leaf.shapes), None)
            if start is not None:
                left.remove(start)
            yield leaf, start

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Those of the arrays."""
        return [array.shape for array in self.arrays]


def payload_of(message: Message) -> Part:
    """Return the payload of a reply or an instruction, whose arrays can be changed."""
    return Part.of(next(iter(message.content.array_records.values())).to_numpy_ndarrays()).copy()


def sending(reply: Message, arrays: Arrays) -> Message:
    """Have a reply bring other arrays."""
    reply.content[next(iter(reply.content.array_records))] = ArrayRecord(arrays)
    return reply


# ---- what becomes of numbers --------------------------------------------------------------------------


def pick(draw: Draw, items: Any) -> Any:
    """Return one of ``items``."""
    return items[int(draw.integers(len(items)))]


def filled(value: float) -> Change:
    """Return what puts one value in the place of all."""
    return lambda values, base, draw: np.full_like(values, value)


def times(factor: float) -> Change:
    """Return what goes ``factor`` times as far."""
    return lambda values, base, draw: base + factor * (values - base)


def one(value: Callable[[Draw], float]) -> Change:
    """Return what changes a single number."""

    def change(values: Array, base: Any, draw: Draw) -> Array:
        changed = values.copy()
        if changed.size:
            new = value(draw)
            changed.reshape(-1)[int(draw.integers(changed.size))] = new
        return changed

    return change


CHANGES: dict[str, Change] = {
    "NaN": filled(math.nan),
    "1e20": filled(1e20),
    "1e30": filled(1e30),
    "zeros": filled(0.0),
    "x100": times(100.0),
    "x60": times(60.0),
    "x40": times(40.0),
    "x-1": times(-1.0),
    "x-6": times(-6.0),
    "x-10": times(-10.0),
    "scaled": lambda values, base, draw: values * 10.0 ** draw.uniform(-30, 30),
    "a little scaled": lambda values, base, draw: values * 10.0 ** draw.uniform(0, 4),
    "filled": lambda values, base, draw: np.full_like(
        values, pick(draw, [65504.0, -65504.0, 1e-30, 1.0, -5.0, 1e4, 1e38])
    ),
    "noise": lambda values, base, draw: (
        values + draw.standard_normal(values.shape) * 10.0 ** draw.uniform(-3, 6)
    ),
    "one coordinate": one(lambda draw: pick(draw, [1, -1]) * 10.0 ** draw.uniform(-3, 38)),
    "no number": one(lambda draw: pick(draw, [np.nan, np.inf, -np.inf])),
}

_NOBODY = np.random.default_rng(0)  # of what draws nothing


@np.errstate(all="ignore")
def changed(array: Array, change: str | Change, base: Any = 0.0, draw: Draw = _NOBODY) -> Array:
    """Return numbers or pixels behind a change, in their own type; pixels stay within theirs."""
    how = CHANGES[change] if isinstance(change, str) else change
    new = np.asarray(how(array.astype(np.float64), base, draw))
    if array.dtype.kind == "u":
        new = np.clip(np.nan_to_num(np.where(new < 0, new % 256, new)), 0, 255)
    return new.astype(array.dtype).reshape(array.shape)


def change_numbers(part: Part, change: str | Change, start: Part | None = None) -> None:
    """Change all floating values of a part, which began as those of ``start``."""
    for i, array in enumerate(part.arrays):
        if array.dtype.kind == "f":
            base = 0.0 if start is None else start.arrays[i].astype(np.float64)
            part.arrays[i] = changed(array, change, base)


# ---- what stands between a site and the server --------------------------------------------------------

ALWAYS = range(1, 99)


def with_arrays(change: Damage, rounds: Collection[int] = ALWAYS) -> Any:
    """Return a tamper that changes the reply's arrays in some rounds."""

    def tamper(instruction: Message, reply: Message) -> Message:
        if int(instruction.metadata.group_id) not in rounds:
            return reply
        record = next(iter(reply.content.array_records.values()))
        return sending(reply, change(record.to_numpy_ndarrays()))

    return tamper


def nan(arrays: Arrays) -> Arrays:
    return [arrays[0], *(np.full_like(a, np.nan) for a in arrays[1:])]


def with_part(part: str, change: str | Change, rounds: Collection[int] = ALWAYS) -> Any:
    """Return a tamper that changes the floating values of a bundle's part in some rounds; without a name all values."""

    def spoil(arrays: Arrays) -> Arrays:
        payload = Part.of(arrays)
        for path, leaf in payload.named():
            if not part or path.partition("/")[0] == part:
                change_numbers(leaf, change)
        return payload.encode()

    return with_arrays(spoil, rounds)


def away_from_start(factor: float, rounds: Collection[int] = ALWAYS) -> Any:
    """Return a tamper that sends w_r + ``factor`` (w_k - w_r) for what began as w_r, ``factor`` w_k for the rest."""

    def tamper(instruction: Message, reply: Message) -> Message:
        if int(instruction.metadata.group_id) not in rounds:
            return reply
        sent = payload_of(reply)
        for part, start in sent.starts(payload_of(instruction)):
            change_numbers(part, times(factor), start)
        return sending(reply, sent.encode())

    return tamper
