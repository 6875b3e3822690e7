"""The frame every payload travels in: a JSON header as the first array, then the payload's own arrays.

Nothing is ever unpickled: arrays are NumPy's, the header is JSON, and both are checked against what the receiver
expects before a single value is used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from common.errors import PayloadError
from common.wire import npy
from common.wire.compression import COMPRESSIONS, Arrival, NDArray, arrivals, compress

VERSION = 1
MAX_HEADER_BYTES = 65_536

#: bytes of a header that is worth remembering
_SHORT = 128


class Spec(Protocol):
    """What a receiver expects; it alone decides how a payload is decoded."""

    @property
    def payload(self) -> type[Payload]:
        """The payload class this specification is for."""
        ...

    @property
    def max_bytes(self) -> int:
        """The most bytes that such a payload travels in, header included; what takes more is not even read."""
        ...


S = TypeVar("S", contravariant=True)


class Payload(Protocol):
    """A small data class that travels.

    ``decode(arrays, spec)`` raises PayloadError, naming what was expected, unless version, count, dtypes,
    shapes, finiteness and limits are all as ``spec`` says.
    """

    kind: ClassVar[str]

    def encode(self, compression: str = "none") -> list[NDArray]:
        """Return the arrays that travel, the header first."""
        ...

    @classmethod
    def decode(cls, arrays: Sequence[NDArray], spec: Any) -> Payload:
        """Rebuild a payload from ``arrays``: the one that was sent, or what it stands for."""
        ...

    @property
    def floats(self) -> int:
        """The number of values as the papers count a message: weights or pixels, no labels or headers."""
        ...


@runtime_checkable
class CarriesExamples(Protocol):
    """A payload with examples made to stand for the site's own, whatever else it carries."""

    @property
    def examples(self) -> Tensor:
        """Float32 [n, *shape], in the model's normalised space."""
        ...


def frame(
    kind: str, fields: Mapping[str, Any], arrays: Sequence[NDArray], compression: str = "none"
) -> list[NDArray]:
    """Put a header with ``fields`` in front of ``arrays``; compress them where that makes the whole smaller."""
    header = {"kind": kind, "version": VERSION, **fields}
    plain = [_header(header), *arrays]
    if compression == "none":
        return plain
    entries, small = compress(arrays)
    compressed = [_header({**header, "compression": compression, "arrays": entries}), *small]
    return min(plain, compressed, key=lambda frame: sum(array.nbytes for array in frame))


def encoded_bytes(*arrays: int) -> int:
    """Return the most bytes that a payload travels in whose arrays hold at most ``arrays`` bytes of values each."""
    return MAX_HEADER_BYTES + sum(arrays) + (1 + len(arrays)) * npy.MAX_HEADER_BYTES


def _header(fields: Mapping[str, Any]) -> NDArray:
    if all(type(value) in (str, int) for value in fields.values()):
        return _short_header(tuple(fields.items()))
    return np.frombuffer(_written(fields), dtype=np.uint8)


@lru_cache(maxsize=64)
def _short_header(fields: tuple[tuple[str, str | int], ...]) -> NDArray:
    """Return a header that many payloads have, such as weights': the same array, to which nobody can write."""
    return np.frombuffer(_written(dict(fields)), dtype=np.uint8)


def _written(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()


def unframe(kind: str, arrays: Sequence[NDArray]) -> tuple[dict[str, Any], list[Arrival]]:
    """Return the header's fields and the payload's arrays; PayloadError unless the header is a ``kind``'s.

    Nothing is expanded here: an array's ``values()`` are for when its dtype and shape have been checked.
    """
    header, body = unframe_plain(kind, arrays)
    _require_native(kind, body)
    if "compression" not in header:
        return header, [Arrival(a.dtype, a.shape, a) for a in body]
    choose(header, "compression", COMPRESSIONS[1:])
    return header, arrivals(kind, header.get("arrays"), body)


def unframe_plain(kind: str, arrays: Sequence[NDArray]) -> tuple[dict[str, Any], Sequence[NDArray]]:
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


def _require_native(kind: str, arrays: Sequence[NDArray]) -> None:
    """PayloadError for an array in the other byte order: its dtype has the expected name, and torch refuses it."""
    for array in arrays:
        if not array.dtype.isnative:
            raise PayloadError(
                f"the '{kind}' holds {array.dtype.name} in {array.dtype.str} byte order where this machine's own, "
                f"{array.dtype.newbyteorder('=').str}, was expected"
            )


def describe(array: NDArray | Arrival) -> str:
    """Return dtype and shape in words that go into an error."""
    return f"{array.dtype} of shape {tuple(array.shape)}"


def require_count(kind: str, arrays: Sequence[Arrival], expected: int) -> None:
    """PayloadError unless there are ``expected`` arrays after the header."""
    if len(arrays) != expected:
        raise PayloadError(
            f"the '{kind}' holds {len(arrays)} arrays where {expected} were expected"
        )


def require_finite(name: str, tensor: torch.Tensor) -> None:
    """PayloadError if a value of ``tensor`` is not a finite number."""
    if not is_finite(tensor):
        bad = int((~torch.isfinite(tensor)).sum())
        raise PayloadError(f"{name} holds {bad} of {tensor.numel()} values that are not finite")


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether every value of ``tensor`` is a finite number."""
    if not tensor.is_floating_point():
        return True
    # A sum is not finite where a summand is not. It may exceed its dtype where none is, and takes a tenth of the time.
    return math.isfinite(tensor.sum()) or bool(torch.isfinite(tensor).all())


def choose(header: Mapping[str, Any], key: str, allowed: Sequence[str]) -> str:
    """Return the header's ``key``; PayloadError unless it is one of ``allowed``."""
    value = header.get(key)
    if value not in allowed:
        raise PayloadError(
            f"the header says {key} {str(value)[:40]!r}, allowed are {', '.join(allowed)}"
        )
    return str(value)


def as_half(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` as float16; PayloadError where its range does not reach, rather than sending infinities."""
    half = tensor.to(torch.float16)
    if bool(torch.isinf(half).any()) and not bool(torch.isinf(tensor).any()):
        raise PayloadError(f"{name} exceeds what float16 holds (65504): send it as float32")
    return half
