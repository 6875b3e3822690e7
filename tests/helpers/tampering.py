"""What a device that misbehaves makes of its reply."""

from __future__ import annotations

from collections.abc import Callable
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
