"""What a server's payloads become: weights that come to one device after the other are decoded once a process."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from common.wire import npy
from common.wire.bundle import BundleSpec
from common.wire.form import Payload, Spec
from common.wire.weights import Weights, WeightsSpec

NDArrays = Sequence[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class _Kept:
    """Weights, and what they were decoded from."""

    arrays: NDArrays
    spec: WeightsSpec
    weights: Weights


class DecodeCache:
    """Decodes payloads, and keeps the weights of the last one for those who are sent the same.

    A device that writes to its weights writes to its own copy.
    """

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._read: list[tuple[bytes, np.ndarray[Any, Any]]] = []

    def arrays_of(self, record: ArrayRecord) -> list[np.ndarray[Any, Any]]:
        """Return the arrays in their order, as read-only views of what came; PayloadError if one is no array.

        Bytes that equal those at their place in the last message give the same view again.
        """
        last, self._read = self._read, []
        self._read = [
            known if known and data == known[0] else (data, npy.read(data))
            for known, data in zip_longest(last, (a.data for a in record.values()))
            if data is not None
        ]
        return [view for _, view in self._read]

    def decode(self, arrays: NDArrays, spec: Spec) -> Payload:
        """Return the payload that ``arrays`` are, by its specification; PayloadError if they are not."""
        if isinstance(spec, BundleSpec):
            return spec.decode(arrays, self._part)
        return self._part("", arrays, spec)

    def _part(self, name: str, arrays: NDArrays, spec: Spec) -> Payload:
        if not isinstance(spec, WeightsSpec):
            return spec.decode(arrays)
        return self.weights(arrays, spec, name)

    def weights(self, arrays: NDArrays, spec: WeightsSpec, name: str = "") -> Weights:
        """Return the weights that ``arrays``, or a bundle's part ``name``, are; PayloadError if they are not."""
        if any(a.flags.writeable for a in arrays):
            return spec.decode(arrays)
        kept = self._kept.pop(name, None)
        same = kept is not None and len(arrays) == len(kept.arrays) and spec == kept.spec
        if kept is None or not same or not all(map(operator.is_, arrays, kept.arrays)):
            del kept  # or there are two in memory
            weights = spec.decode(arrays)
        else:
            weights = kept.weights
        self._kept[name] = _Kept(arrays, spec, weights)
        return weights.copy_on_write()


DECODE_CACHE = DecodeCache()
"""This process's."""
