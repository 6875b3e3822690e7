"""An account of an evaluation, batch by batch, on a GPU without waiting for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from common.learning.task import ClassTally


def test_the_account_is_numpys_count() -> None:
    rng = np.random.default_rng(0)
    tally, hits, seen = ClassTally(7), np.zeros(7), np.zeros(7)
    for size in (5, 1, 40):
        outputs, targets = rng.normal(size=(size, 7)), rng.integers(7, size=size)
        tally.add(torch.tensor(outputs), torch.tensor(targets))
        hits += np.bincount(targets[outputs.argmax(1) == targets], minlength=7)
        seen += np.bincount(targets, minlength=7)
    found = tally.result()
    assert found.examples == seen.sum() == 46
    assert found.accuracy == hits.sum() / seen.sum()
    assert found.per_class == pytest.approx(tuple(hits / seen))


def test_a_batch_is_added_without_a_look_at_its_values() -> None:
    """On torch's device that has no values, whatever waits for one raises."""
    tally = ClassTally(7)
    for _ in range(2):
        targets = torch.zeros(5, dtype=torch.int64, device="meta")
        tally.add(torch.zeros(5, 7, device="meta"), targets)
    with pytest.raises((NotImplementedError, RuntimeError)):
        tally.result()
