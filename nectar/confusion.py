"""What examples of each class were taken for: counts [true, predicted] as figures by class and as mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

MAX_CLASSES = 20
"""Classes up to which all counts are shown; of more, the commonest mistakes."""


class Mistake(NamedTuple):
    """``number`` of the ``examples`` of the class ``true`` were taken for the class ``predicted``."""

    true: int
    predicted: int
    number: int
    examples: int


def by_class(counts: Sequence[Sequence[int]]) -> pd.DataFrame:
    """Return a row for each class: images, taken-for, recall, precision, f1; NaN where nothing can be judged.

    Recall is the share of the class's examples that were recognised, precision the share of right ones among the
    examples taken for it, F1 their harmonic mean.
    """
    table = np.array(counts)
    right, images, taken = table.diagonal(), table.sum(1), table.sum(0)
    return pd.DataFrame(
        {
            "images": images,
            "taken-for": taken,
            "recall": right / np.where(images, images, np.nan),
            "precision": right / np.where(taken, taken, np.nan),
            "f1": 2 * right / np.where(images + taken, images + taken, np.nan),
        }
    )


def mistakes(counts: Sequence[Sequence[int]], most: int) -> list[Mistake]:
    """Return the commonest mistakes, ``most`` of them at the most."""
    table = np.array(counts)
    wrong = table - np.diag(table.diagonal())
    order = np.argsort(-wrong, axis=None, kind="stable")[:most]
    pairs = np.column_stack(np.unravel_index(order, wrong.shape)).tolist()
    return [Mistake(i, j, int(wrong[i, j]), int(table[i].sum())) for i, j in pairs if wrong[i, j]]
