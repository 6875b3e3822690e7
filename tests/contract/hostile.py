"""Ways in which a site spoils whatever its method sends: none is a reply that an honest site could have sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Error, Message
from tampering import Part, away_from_start, change_numbers, payload_of, sending

Spoil = Callable[[list[Part]], None]


def _all(change: str, at: int) -> Spoil:
    """Return what changes the numbers of one part; parts of bytes have none, and come in another type instead."""

    def spoil(parts: list[Part]) -> None:
        numbers = [part for part in parts if any(a.dtype.kind == "f" for a in part.arrays)]
        if numbers:
            change_numbers(numbers[at], change)
        else:
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
        part.say(**{"codec": other} if "codec" in head else {"kind": "unheard-of"})
        part.arrays[:] = [a.astype(other) if a.dtype.kind == "f" else a for a in part.arrays]


def _nothing(parts: list[Part]) -> None:
    for part in parts:
        part.arrays.clear()


SPOILT: dict[str, Spoil | None] = {
    "NaN in the first part": _all("NaN", 0),
    "NaN in the last part": _all("NaN", -1),
    "1e20 in the first part": _all("1e20", 0),
    "1e20 in the last part": _all("1e20", -1),
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
        sent = payload_of(reply)
        spoil([part for part in sent.leaves() if part.arrays])
        return sending(reply, sent.encode())

    return tamper


longer = away_from_start(40.0)
