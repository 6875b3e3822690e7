"""The content of a message as plain data for a frame, with its arrays' bytes elsewhere, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

Place = tuple[int, int, int]
"""Where an array's bytes lie: the number of a sheet, the offset and the length there."""

_ARRAYS, _CONFIG, _METRICS = "arrays", "config", "metrics"

#: what stands in the place of a value of bytes, which JSON does not have
_BYTES = "bytes"


class Pile:
    """Bytes that lie one behind the other in a message's own sheet, number 0.

    Attributes
    ----------
    blobs : list of bytes
        In order.
    """

    def __init__(self) -> None:
        self.blobs: list[bytes] = []
        self._end = 0

    def place(self, blob: bytes) -> Place:
        """Put ``blob`` on it, and return where it lies."""
        self.blobs.append(blob)
        self._end += len(blob)
        return 0, self._end - len(blob), len(blob)


def blobs_of(content: RecordDict) -> Iterator[bytes]:
    """Yield the bytes of every array in ``content``, in order."""
    for record in content.array_records.values():
        for array in record.values():
            yield array.data


def written(content: RecordDict, place: Callable[[bytes], Place]) -> dict[str, Any]:
    """Return ``content`` as plain data; ``place`` says of an array's bytes where they lie."""
    return {name: _written(record, place) for name, record in content.items()}


def _written(record: Any, place: Callable[[bytes], Place]) -> list[Any]:
    if isinstance(record, ArrayRecord):
        rows = [
            [key, array.dtype, list(array.shape), array.stype, *place(array.data)]
            for key, array in record.items()
        ]
        return [_ARRAYS, rows]
    if isinstance(record, ConfigRecord):
        return [_CONFIG, {key: _plain(value) for key, value in record.items()}]
    return [_METRICS, dict(record)]


def read(written: Mapping[str, Any], take: Callable[[Place], bytes]) -> RecordDict:
    """Return the content that :func:`written` wrote; ``take`` returns the bytes of a place."""
    return RecordDict({name: _read(kind, values, take) for name, (kind, values) in written.items()})


def _read(
    kind: str, values: Any, take: Callable[[Place], bytes]
) -> ArrayRecord | ConfigRecord | MetricRecord:
    if kind == _ARRAYS:
        return ArrayRecord(
            {
                key: Array(dtype, tuple(shape), stype, take((sheet, offset, length)))
                for key, dtype, shape, stype, sheet, offset, length in values
            }
        )
    if kind == _CONFIG:
        return ConfigRecord({key: _value(value) for key, value in values.items()})
    return MetricRecord(values)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {_BYTES: value.hex()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _value(plain: Any) -> Any:
    if isinstance(plain, dict):
        return bytes.fromhex(plain[_BYTES])
    return [_value(each) for each in plain] if isinstance(plain, list) else plain
