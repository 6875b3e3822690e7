"""Rows of a table and series as they are read by people: raw values under the columns' names, as text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.samples.dataset import DatasetInfo
from common.storage.csv_text import csv_text


def raw_values(given: Tensor, info: DatasetInfo) -> NDArray[np.float64]:
    """Return the raw values [n, C, 1, T] of rows or series as a model takes them."""
    mean, std = (np.array(each)[:, None, None] for each in (info.mean, info.std))
    values: NDArray[np.float64] = given.detach().cpu().double().numpy() * std + mean
    return values


def as_written(given: Tensor, info: DatasetInfo) -> Tensor:
    """Return rows or series as a model takes them, of the digits that ``csv_of_rows`` writes of each number."""
    mean, std = (np.array(each)[:, None, None] for each in (info.mean, info.std))
    read = np.vectorize(lambda value: float(f"{value:.7g}"))(raw_values(given, info))
    return torch.from_numpy((read - mean) / std).float()


def column_names(info: DatasetInfo) -> tuple[str, ...]:
    """Return the names of the columns, or of a series' channels; else their numbers, from 1."""
    return info.columns or tuple(str(place + 1) for place in range(info.shape[0]))


def csv_of_rows(given: Tensor, labels: Sequence[str], info: DatasetInfo) -> str:
    """Return rows or series as a model takes them, with a label each, as comma-separated text in raw values.

    A series' line has its channels' steps one after the other, each under ``channel[step]``, counted from 0.
    """
    names = column_names(info)
    if info.kind == "series":
        names = tuple(f"{name}[{step}]" for name in names for step in range(info.shape[2]))
    values = raw_values(given, info).reshape(len(given), len(names))
    rows = ([label, *(f"{v:.7g}" for v in row)] for label, row in zip(labels, values, strict=True))
    return csv_text(["class", *names], rows)
