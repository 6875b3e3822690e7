"""Flower's records of arrays, made of NumPy's: as ``ArrayRecord(arrays)`` makes them, to the byte, and sooner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from common.wire import npy

_KIND = "numpy.ndarray"
"""Flower's name for what ``numpy.save`` writes."""

R = TypeVar("R", ArrayRecord, ConfigRecord, MetricRecord, RecordDict)


def array_of(ndarray: np.ndarray[Any, Any]) -> Array:
    """Return what travels instead of an array."""
    # Array's constructor takes longer to see which of its forms is meant than all of this.
    array = Array.__new__(Array)
    array.__dict__.update(
        dtype=_name_of(ndarray.dtype), shape=ndarray.shape, stype=_KIND, data=npy.write(ndarray)
    )
    return array


@lru_cache(maxsize=64)
def _name_of(dtype: np.dtype[Any]) -> str:
    return str(dtype)


def copy_of(array: Array) -> Array:
    """Return another Array of the same bytes, which nobody can write to."""
    new = Array.__new__(Array)
    new.__dict__.update(array.__dict__)
    return new


def record_of(arrays: Iterable[Array]) -> ArrayRecord:
    """Return a record of arrays by their numbers; it holds these very objects, which nobody is to change."""
    return filled(ArrayRecord(), {str(i): array for i, array in enumerate(arrays)})


def filled(record: R, values: Mapping[str, Any]) -> R:
    """Return ``record``, just made, with ``values``, whose types are known: Flower's check of each takes longer."""
    record.__dict__["_data"].update(values)
    return record
