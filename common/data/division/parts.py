"""The parts of a training set in one array: of a hundred thousand of them, an array each is more than what they say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class Parts(Sequence[Indices]):
    """K arrays of positions, as views that are made when they are asked for.

    Parameters
    ----------
    positions
        int64 [n], the first part's, the second's and so on.
    ends
        int64 [K], where each part ends in ``positions``.
    """

    def __init__(self, positions: Indices, ends: Indices) -> None:
        self._positions, self._ends = positions, ends

    @classmethod
    def of(cls, parts: Sequence[Indices]) -> Parts:
        """Return the same parts in one array; there is one at least."""
        return cls(np.concatenate(parts), np.cumsum([len(part) for part in parts]))

    def within(self, positions: Indices) -> Parts:
        """Return the parts of a whole of which these number the ``positions``, int64 [m]."""
        return Parts(positions[self._positions], self._ends)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Indices: ...

    @overload
    def __getitem__(self, index: slice) -> list[Indices]: ...

    def __getitem__(self, index: int | slice) -> Indices | list[Indices]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        begin = int(self._ends[place - 1]) if place else 0
        return self._positions[begin : int(self._ends[place])]
