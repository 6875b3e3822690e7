"""Ways in which a site spoils whatever its method sends: none is a reply that an honest site could have sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Error, Message
from spoiling import Part

Spoil = Callable[[list[Part]], None]


def _filled(value: float, at: int) -> Spoil:
    """Return what fills the numbers of one part; a part of bytes has none, and comes in another type instead."""

    def spoil(parts: list[Part]) -> None:
        numbers = [part for part in parts if any(a.dtype.kind == "f" for a in part.arrays)]
        for part in [numbers[at]] if numbers else []:
            with np.errstate(over="ignore"):
                part.arrays[:] = [
                    np.full_like(a, value) if a.dtype.kind == "f" else a for a in part.arrays
                ]
        if not numbers:
            _other_type(parts)

    return spoil


def _other_type(parts: list[Part]) -> None:
    for part in parts:
        part.arrays[:] = [
            a.astype(np.float64 if a.dtype.kind == "f" else np.int32) for a in part.arrays
        ]


def _other_codec(parts: list[Part]) -> None:
    """Have each part come in a codec that was not asked for, or a form that none has."""
    for part in parts:
        head = json.loads(part.head.tobytes())
        other = "float32" if head.get("codec") == "float16" else "float16"
        head |= {"codec": other} if "codec" in head else {"kind": "unheard-of"}
        part.head = np.frombuffer(json.dumps(head).encode(), np.uint8)
        part.arrays[:] = [a.astype(other) if a.dtype.kind == "f" else a for a in part.arrays]


def _nothing(parts: list[Part]) -> None:
    for part in parts:
        part.arrays.clear()


SPOILT: dict[str, Spoil | None] = {
    "NaN in the first part": _filled(np.nan, 0),
    "NaN in the last part": _filled(np.nan, -1),
    "1e20 in the first part": _filled(1e20, 0),
    "1e20 in the last part": _filled(1e20, -1),
    "another type": _other_type,
    "another codec": _other_codec,
    "no arrays": _nothing,
    "lost on its way": None,
}


def spoiler(spoil: Spoil | None, server_round: int) -> Any:
    """Return a tamper that spoils a site's reply to ``server_round``; without ``spoil`` it never comes."""

    def tamper(instruction: Message, reply: Message) -> Message:
        if instruction.metadata.group_id != str(server_round):
            return reply
        if spoil is None:
            return Message(Error(code=5, reason="away"), reply_to=instruction)
        sent = Part.of(reply.content["arrays"].to_numpy_ndarrays()).copy()  # type: ignore[union-attr]
        spoil([part for part in sent.leaves() if part.arrays])
        reply.content["arrays"] = ArrayRecord(sent.encode())
        return reply

    return tamper


def longer(instruction: Message, reply: Message) -> Message:
    """Go forty times as far as the site went from what it was sent, or from 0 where nothing like it was sent."""
    asked = Part.of(instruction.content["arrays"].to_numpy_ndarrays())  # type: ignore[union-attr]
    sent = Part.of(reply.content["arrays"].to_numpy_ndarrays()).copy()  # type: ignore[union-attr]
    starts = list(asked.leaves())
    for part in sent.leaves():
        start = next((begun for begun in starts if _shapes(begun) == _shapes(part)), None)
        if start is not None:
            starts.remove(start)
        for i, array in enumerate(part.arrays):
            if array.dtype.kind == "f":
                base = 0 if start is None else start.arrays[i].astype(np.float64)
                part.arrays[i] = (base + 40 * (array - base)).astype(array.dtype)
    reply.content["arrays"] = ArrayRecord(sent.encode())
    return reply


def _shapes(part: Part) -> tuple[Any, ...]:
    return tuple(array.shape for array in part.arrays)
