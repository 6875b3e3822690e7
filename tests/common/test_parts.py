"""Parts of a training set in one array are what a list of arrays is."""

from __future__ import annotations

import numpy as np
import pytest

from common.data.division.partitions import partition
from common.data.division.parts import Parts
from common.settings.sections import PartitionSettings

LIST = [np.array([4, 7]), np.array([0]), np.array([], dtype=np.int64), np.array([1, 2, 9])]


def test_they_read_as_the_list() -> None:
    parts = Parts.of(LIST)
    assert len(parts) == 4
    assert [part.tolist() for part in parts] == [part.tolist() for part in LIST]
    assert [parts[i].tolist() for i in (0, 3, -1, -4)] == [[4, 7], [1, 2, 9], [1, 2, 9], [4, 7]]
    assert [part.tolist() for part in parts[1:]] == [[0], [], [1, 2, 9]]
    for outside in (4, -5):
        with pytest.raises(IndexError):
            parts[outside]


def test_they_are_numbered_in_a_larger_whole() -> None:
    whole = Parts.of(LIST).within(np.arange(10) * 10)
    assert [part.tolist() for part in whole] == [[40, 70], [0], [], [10, 20, 90]]


def test_ten_thousand_are_no_more_than_two_arrays() -> None:
    """Views are made when they are asked for: nothing is held for a part but where it ends."""
    labels = np.arange(30_000) % 10
    parts = partition(labels, 10_000, PartitionSettings(kind="iid"), seed=0)
    held = [value for value in vars(parts).values() if isinstance(value, np.ndarray)]
    assert [array.shape for array in held] == [(30_000,), (10_000,)]
    assert len(vars(parts)) == 2
    assert parts[5] is not parts[5]
    assert np.shares_memory(parts[5], held[0])
    assert sorted(np.concatenate(parts).tolist()) == list(range(30_000))
