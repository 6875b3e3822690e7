"""Flower's records of arrays, made of NumPy's: as ``ArrayRecord(arrays)`` makes them, to the byte, and sooner."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from common.wire import npy

_KIND = "numpy.ndarray"
"""Flower's name for what ``numpy.save`` writes."""


def array_of(ndarray: np.ndarray[Any, Any]) -> Array:
    """Return what travels in the place of an array."""
    array = Array.__new__(
        Array
    )  # whose constructor takes longer to see which of its forms is meant than all of this
    array.dtype, array.shape = str(ndarray.dtype), ndarray.shape
    array.stype, array.data = _KIND, npy.write(ndarray)
    return array


def record_of(arrays: Iterable[Array]) -> ArrayRecord:
    """Return a record of arrays by their numbers; it holds these very objects, which nobody is to change."""
    record = ArrayRecord()
    for i, array in enumerate(arrays):
        record[str(i)] = array
    return record
