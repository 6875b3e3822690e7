"""Lossless compression of what travels, and arrays whose dtype and shape are known before their values are.

A receiver checks the declared dtype and shape against what it expects and only then expands, to exactly the bytes
that these stand for: a stream that holds more is never expanded further.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from common.errors import PayloadError

AnyArray = npt.NDArray[Any]

#: zlib's level: 9 saved nothing over 6, on distilled images and on weights
_LEVEL = 6


@dataclass(frozen=True)
class Compression:
    """How bytes are compressed, the class of a stream that expands them as `zlib.decompressobj` does, and its error."""

    compress: Callable[[bytes], bytes]
    stream: Callable[[], Any]
    error: type[Exception]


COMPRESSIONS = {
    "zlib": Compression(lambda data: zlib.compress(data, _LEVEL), zlib.decompressobj, zlib.error)
}
"""The compressions by name, besides ``none``."""

_DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("float16", "float32", "float64", "bool"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    )
}

Entry = list[Any] | None
"""What the header says of an array: [dtype, shape] of a compressed one, None of one that travels as it is."""


@dataclass(frozen=True)
class CompressedArray:
    """An array that has arrived: ``data`` is the array itself, or its bytes by a ``compression``."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    data: AnyArray
    compression: str = ""

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def values(self) -> AnyArray:
        """Return the array; call it once dtype and shape are what is expected, which bounds the memory it takes."""
        if not self.compression:
            return self.data
        return _expand(self.data, self.dtype, self.shape, COMPRESSIONS[self.compression])


def compress(arrays: Sequence[AnyArray], compression: str) -> tuple[list[Entry], list[AnyArray]]:
    """Return the header's entries and the arrays that travel: compressed those that get smaller by it."""
    entries: list[Entry] = []
    travelling = []
    for array in arrays:
        small = np.frombuffer(COMPRESSIONS[compression].compress(_planes(array)), np.uint8)
        worth = small.nbytes < array.nbytes
        entries.append([array.dtype.name, list(array.shape)] if worth else None)
        travelling.append(small if worth else array)
    return entries, travelling


def arrivals(
    kind: str, entries: object, arrays: Sequence[AnyArray], compression: str
) -> list[CompressedArray]:
    """Return ``arrays`` with the dtypes and shapes that the header's ``entries`` give them, or raise PayloadError."""
    if not isinstance(entries, list) or len(entries) != len(arrays):
        number = len(entries) if isinstance(entries, list) else "no"
        raise PayloadError(
            f"the compressed '{kind}' describes {number} arrays in its header where {len(arrays)} came with it"
        )
    return [_arrival(kind, e, a, compression) for e, a in zip(entries, arrays, strict=True)]


def _arrival(kind: str, entry: object, array: AnyArray, compression: str) -> CompressedArray:
    if entry is None:
        return CompressedArray(array.dtype, array.shape, array)
    match entry:
        case [str(name), list(shape)] if name in _DTYPES and all(_is_length(n) for n in shape):
            pass
        case _:
            raise PayloadError(
                f"the compressed '{kind}' describes an array as {str(entry)[:40]} where a dtype and a shape, as "
                '["float32",[10,8]], were expected'
            )
    if array.dtype != np.uint8 or array.ndim != 1:
        raise PayloadError(
            f"the compressed '{kind}' holds {array.dtype} of shape {array.shape} where compressed bytes, uint8 of "
            "one dimension, were expected"
        )
    return CompressedArray(_DTYPES[name], tuple(shape), array, compression)


def _is_length(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def _planes(array: AnyArray) -> bytes:
    """Return the first bytes of all values, then all second ones, and so on.

    Signs and exponents of neighbours resemble each other while mantissas do not: apart, float32 images and weights
    of digits compress to 0.86 and 0.89 of their bytes, together to 0.92 and 0.93.
    """
    little = np.ascontiguousarray(array, _DTYPES[array.dtype.name])
    return little.view(np.uint8).reshape(-1, little.itemsize).T.tobytes()


def _expand(
    data: AnyArray, dtype: np.dtype[Any], shape: tuple[int, ...], compression: Compression
) -> AnyArray:
    size = math.prod(shape) * dtype.itemsize
    stream = compression.stream()
    try:
        content: bytes = stream.decompress(data.tobytes(), size + 1)
    except compression.error:
        raise PayloadError(
            f"compressed bytes are damaged where {dtype.name} of shape {shape} was expected"
        ) from None
    if len(content) != size or not stream.eof or stream.unused_data:
        found = "more" if len(content) > size or stream.unused_data else "less"
        raise PayloadError(
            f"compressed bytes hold {found} than the {size} bytes of {dtype.name} of shape {shape} that were expected"
        )
    planes = np.frombuffer(content, np.uint8).reshape(dtype.itemsize, -1)
    return np.ascontiguousarray(planes.T).view(dtype).reshape(shape)
