"""Arrays as NumPy's ``save`` writes them, written with their header made once, and read without NumPy's loader.

``numpy.load`` takes whatever comes for what it says it is: an archive gives an object that is no array, and a header
that claims a terabyte has a terabyte asked for before a value is read. Here a claim is compared with the bytes that
came, and nothing is evaluated, unpickled or copied.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from io import BytesIO
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from common.errors import PayloadError

NDArray = npt.NDArray[Any]

#: what precedes the values at most, for arrays of numbers of any number of dimensions that a payload has
MAX_HEADER_BYTES = 512

_MAGIC = b"\x93NUMPY\x01\x00"
_START = len(_MAGIC) + 2
_HEADER = re.compile(
    rb"\{'descr': '([<>|][fiub]\d{1,2})', 'fortran_order': (False|True), "
    rb"'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\), \} *\n"
)
_NO_HEADER = "its header is not that of an array of numbers"


def write(array: NDArray) -> bytes:
    """Return the bytes that ``numpy.save`` writes of an array of numbers."""
    if not array.flags.c_contiguous:
        buffer = BytesIO()
        np.save(buffer, array, allow_pickle=False)
        return buffer.getvalue()
    head = _head(array.dtype.str, array.shape)
    return b"".join((head, array.data)) if array.size else head


@lru_cache(maxsize=4096)
def _head(descr: str, shape: tuple[int, ...]) -> bytes:
    buffer = BytesIO()
    fields = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, fields)
    return buffer.getvalue()


def read(data: bytes) -> NDArray:
    """Return the array of numbers that ``data`` holds, as a read-only view of it.

    Raises
    ------
    PayloadError
        If ``data`` is anything else than a header and exactly the values that it announces.
    """
    if not data.startswith(_MAGIC):
        raise PayloadError("it is not an array as numpy.save writes one")
    length = int.from_bytes(data[len(_MAGIC) : _START], "little")
    start = _START + length
    if start > MAX_HEADER_BYTES:
        raise PayloadError(_NO_HEADER)
    try:
        dtype, shape, order = _announced(data[_START:start])
        announced = math.prod(shape) * dtype.itemsize
        if announced != len(data) - start:
            raise PayloadError(
                f"it announces {announced} bytes of {dtype} where {len(data) - start} came with it"
            )
        if not announced:
            return np.empty(0, np.uint8).view(dtype).reshape(shape, order=order)
        return np.ndarray(shape, dtype, data, start, order=order)
    except (TypeError, ValueError):
        raise PayloadError("no array can have its dtype or shape") from None


@lru_cache(maxsize=1024)
def _announced(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], Literal["C", "F"]]:
    """Return dtype, shape and order that a header gives; a federation's are few, and come again with every reply."""
    found = _HEADER.fullmatch(header)
    if found is None:
        raise PayloadError(_NO_HEADER)
    name, fortran, lengths = found.groups()
    shape = tuple(int(n) for n in lengths.split(b",") if n.strip())
    return np.dtype(name.decode()), shape, "F" if fortran == b"True" else "C"
