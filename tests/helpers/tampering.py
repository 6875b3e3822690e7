"""What a device that misbehaves makes of its reply."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict


def with_arrays(change: Callable[[list[np.ndarray]], list[np.ndarray]]) -> Any:
    """Return a tamper that changes the reply's arrays."""

    def tamper(instruction: Message, reply: Message) -> Message:
        record = next(iter(reply.content.array_records.values()))
        arrays = change(record.to_numpy_ndarrays())
        metrics = next(iter(reply.content.metric_records.values()))
        content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
        return Message(content, reply_to=instruction)

    return tamper


def nan(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [arrays[0], *(np.full_like(a, np.nan) for a in arrays[1:])]


def with_part(
    part: str, change: Callable[[np.ndarray], np.ndarray], rounds: Collection[int] = range(1, 99)
) -> Any:
    """Return a tamper that changes the floating values of a bundle's part in some rounds; without a name all values."""

    def spoil(arrays: list[np.ndarray]) -> list[np.ndarray]:
        head = json.loads(arrays[0].tobytes())
        counts = head["parts"] if head["kind"] == "bundle" else [["", len(arrays)]]
        first = int(head["kind"] == "bundle")
        for name, count in counts:
            for i in range(first + 1, first + count) if not part or name == part else ():
                if np.issubdtype(arrays[i].dtype, np.floating):
                    arrays[i] = change(arrays[i]).astype(arrays[i].dtype)
            first += count
        return arrays

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
        start = [a for a in given if np.issubdtype(a.dtype, np.floating)]

        def spoil(arrays: list[np.ndarray]) -> list[np.ndarray]:
            places = [i for i, a in enumerate(arrays) if np.issubdtype(a.dtype, np.floating)]
            for i, began in zip(places, start, strict=False):
                arrays[i] = began + np.float32(factor) * (arrays[i] - began)
            return arrays

        return with_arrays(spoil)(instruction, reply)

    return tamper
