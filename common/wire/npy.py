"""Arrays as NumPy's ``save`` writes them, written with their header made once, and read without NumPy's loader.

``numpy.load`` trusts its input: an archive gives an object that is not an array, and a
header that claims a terabyte has a terabyte allocated before a value is read. Here a claim is compared with the
bytes that came, and nothing is evaluated, unpickled or copied.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from io import BytesIO
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from common.errors import PayloadError

AnyArray = npt.NDArray[Any]

#: what precedes the values at most, for arrays of numbers of any number of dimensions that a payload has
MAX_ARRAY_HEADER_BYTES = 512

_MAGIC = b"\x93NUMPY\x01\x00"
_START = len(_MAGIC) + 2
_HEADER = re.compile(
    rb"\{'descr': '([<>|][fiub]\d{1,2})', 'fortran_order': (False|True), "
    rb"'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\), \} *\n"
)
_NO_HEADER = "its header is not that of an array of numbers"


def write(array: AnyArray) -> bytes:
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


def read(data: bytes) -> AnyArray:
    """Return the array of numbers that ``data`` holds, as a read-only view of it, or raise PayloadError."""
    if not data.startswith(_MAGIC):
        raise PayloadError("it is not an array as numpy.save writes one")
    length = int.from_bytes(data[len(_MAGIC) : _START], "little")
    start = _START + length
    if start > MAX_ARRAY_HEADER_BYTES:
        raise PayloadError(_NO_HEADER)
    try:
        dtype, shape, order = _announced(data[_START:start])
        announced = math.prod(shape) * dtype.itemsize
        if announced != len(data) - start:
            raise PayloadError(
                f"its header announces {announced} bytes of {dtype}, but {len(data) - start} follow"
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


# ---- Flower's arrays ------------------------------------------------------------------------------
# Flower's records of arrays, made of NumPy's: as ``ArrayRecord(arrays)`` makes them, to the byte, and sooner.

_KIND = "numpy.ndarray"
"""Flower's name for what ``numpy.save`` writes."""

R = TypeVar("R", ArrayRecord, ConfigRecord, MetricRecord, RecordDict)


def array_of(ndarray: np.ndarray[Any, Any]) -> Array:
    """Return the serialised form of an array."""
    # Array's constructor takes longer to see which of its forms is meant than all of this.
    array = Array.__new__(Array)
    array.__dict__.update(
        dtype=_name_of(ndarray.dtype), shape=ndarray.shape, stype=_KIND, data=write(ndarray)
    )
    return array


class LazyArray(Array):
    """An Array for a reader in this process: it holds values until their bytes are requested."""

    __qualname__ = Array.__qualname__  # by which Flower names its kind to another process

    @cached_property
    def data(self) -> bytes:  # type: ignore[override]
        """The bytes that ``numpy.save`` writes."""
        return write(self.__dict__.pop("values"))

    def __reduce__(self) -> tuple[Any, ...]:
        """Become an Array of bytes on the way to another process."""
        return Array, (self.dtype, self.shape, self.stype, self.data)


def lazy_array_of(ndarray: AnyArray) -> Array:
    """Return an array that shares the memory of ``ndarray``, which must not change any more."""
    if not ndarray.flags.c_contiguous or not ndarray.size or ndarray.dtype.kind not in "fiub":
        return array_of(ndarray)
    values = ndarray.view()
    values.flags.writeable = False
    array = LazyArray.__new__(LazyArray)
    array.__dict__.update(
        dtype=_name_of(values.dtype), shape=values.shape, stype=_KIND, values=values
    )
    return array


def values_of(array: Array) -> AnyArray:
    """Return the values as `read` returns them: of its bytes, unless they have not been written."""
    known = array.__dict__
    values: AnyArray = read(known["data"]) if "data" in known else known["values"]
    return values


def size_of(array: Array) -> int:
    """Return how many bytes an array has, or will have when they are written."""
    known = array.__dict__
    if "data" in known:
        return len(known["data"])
    values: AnyArray = known["values"]
    return len(_head(values.dtype.str, values.shape)) + values.nbytes


@lru_cache(maxsize=64)
def _name_of(dtype: np.dtype[Any]) -> str:
    return str(dtype)


def record_of(arrays: Iterable[Array]) -> ArrayRecord:
    """Return a record of arrays by their numbers; it holds these very objects, which must not be changed."""
    return unchecked_record(ArrayRecord(), {str(i): array for i, array in enumerate(arrays)})


def unchecked_record(record: R, values: Mapping[str, Any]) -> R:
    """Return ``record``, just made, with ``values``, whose types are known: Flower's check of each takes longer."""
    record.__dict__["_data"].update(values)
    return record
