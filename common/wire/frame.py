"""The frame of every payload: a JSON header as the first array, then the payload's own arrays.

Nothing is ever unpickled: arrays are NumPy's, the header is JSON, and both are checked against what the receiver
expects before a single value is used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from common.errors import PayloadError
from common.wire.image_codecs import PICTURE, is_picture
from common.wire.npy import MAX_ARRAY_HEADER_BYTES, AnyArray

VERSION = 2
MAX_HEADER_BYTES = 65_536

#: bytes of a header that is worth remembering
_SHORT = 128


def frame(kind: str, fields: Mapping[str, Any], arrays: Sequence[AnyArray]) -> list[AnyArray]:
    """Put a header with ``fields`` in front of ``arrays``."""
    return [_header({"kind": kind, "version": VERSION, **fields}), *arrays]


def encoded_bytes(*arrays: int) -> int:
    """Return the most bytes of a payload whose arrays hold at most ``arrays`` bytes of values each."""
    return MAX_HEADER_BYTES + sum(arrays) + (1 + len(arrays)) * MAX_ARRAY_HEADER_BYTES


def _header(fields: Mapping[str, Any]) -> AnyArray:
    if all(type(value) in (str, int) for value in fields.values()):
        return _short_header(tuple(fields.items()))
    return np.frombuffer(_written(fields), dtype=np.uint8)


@lru_cache(maxsize=64)
def _short_header(fields: tuple[tuple[str, str | int], ...]) -> AnyArray:
    """Return a header that many payloads have, such as weights': the same read-only array."""
    return np.frombuffer(_written(dict(fields)), dtype=np.uint8)


def _written(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()


def unframe(kind: str, arrays: Sequence[AnyArray]) -> tuple[dict[str, Any], Sequence[AnyArray]]:
    """Return the header's fields and the arrays behind it as they came; PayloadError unless it is a ``kind``'s."""
    if not arrays:
        raise PayloadError(f"the payload is empty where a '{kind}' was expected")
    head = arrays[0]
    if head.dtype != np.uint8 or head.ndim != 1 or head.size > MAX_HEADER_BYTES:
        raise PayloadError(
            f"the payload has no header where a '{kind}' was expected: its first array is {describe(head)}"
        )
    try:
        text = head.tobytes()
        header = json.loads(text.decode()) if len(text) > _SHORT else _read_short(text)
    except (ValueError, RecursionError):
        raise PayloadError(f"the header of what should be a '{kind}' is not JSON") from None
    if not isinstance(header, dict) or header.get("kind") != kind:
        found = header.get("kind") if isinstance(header, dict) else header
        raise PayloadError(f"the payload is a {str(found)[:40]!r} where a '{kind}' was expected")
    if header.get("version") != VERSION:
        raise PayloadError(
            f"the '{kind}' has version {str(header.get('version'))[:20]}, this side reads {VERSION}: "
            "run the same release on the server and on every device"
        )
    return dict(header), arrays[1:]


@lru_cache(maxsize=64)
def _read_short(text: bytes) -> Any:
    """Read a header as short as weights', which comes with every reply; what is returned is not to be changed."""
    return json.loads(text.decode())


def codec_in(header: Mapping[str, Any], codecs: Sequence[str]) -> str:
    """Return the header's codec; PayloadError unless it is one of ``codecs``, of which `PICTURE` has any quality."""
    found = header.get("codec")
    if PICTURE in codecs and is_picture(found):
        return str(found)
    if found == PICTURE or found not in codecs:
        raise PayloadError(
            f"the header says codec {str(found)[:40]!r}, allowed are {', '.join(codecs)}"
        )
    return str(found)


def describe(array: AnyArray) -> str:
    """Return dtype and shape in words that go into an error."""
    return f"{array.dtype} of shape {tuple(array.shape)}"
