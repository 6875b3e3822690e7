"""Rows of a table and series: their arrays checked and brought to one form, and their public scale."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from common.data.store import Stored
from common.errors import DataError
from common.samples.dataset import REACH, Dataset, DatasetInfo, Split
from common.samples.row_text import column_names
from common.settings.images import ImagesSettings
from common.settings.sections import DataSettings

log = logging.getLogger("flwr")

Rows = Literal["table", "series"]

FORMS: dict[Rows, str] = {"table": "[n, columns]", "series": "[n, channels, steps]"}

MOST_COLUMNS = 10_000
"""The most columns of a table, and the most channels of a series."""

_MISSING = (
    "fill in or leave out what is missing before (docs/data.md has scikit-learn's line for it)"
)
#: what float32 holds of normalised values with room for sums of their squares
_LARGEST = 1e15


def rows_of(
    array: NDArray[np.generic], kind: Rows, what: str, axes: str = "auto"
) -> NDArray[np.float64]:
    """Return rows [n, d] as [n, d, 1, 1], or series [n, c, t] as [n, c, 1, t]; by ``axes`` they may be [n, t, c].

    Raises
    ------
    DataError
        If the array is not of the kind's form, holds NaN or infinity, or has too many columns.
    """
    if array.ndim != (2 if kind == "table" else 3):
        raise DataError(
            f"{what} has shape {array.shape}: it must be {FORMS[kind]} for data.kind={kind}"
        )
    if axes == "channels_last":
        array = array.swapaxes(1, 2)
    if 0 in array.shape[1:] or array.shape[1] > MOST_COLUMNS:
        parts = "columns" if kind == "table" else "channels"
        raise DataError(
            f"{what} has shape {array.shape}: 1 to {MOST_COLUMNS:,} {parts}, and no empty ones, are allowed"
        )
    values = array.astype(np.float64)
    if not np.isfinite(values).all():
        raise DataError(f"{what} holds NaN or infinity: {_MISSING}")
    steps = values.shape[2:] or (1,)
    return np.ascontiguousarray(values.reshape(*values.shape[:2], 1, *steps))


def columns_of(named: Mapping[str, Any], channels: int, what: str) -> list[str]:
    """Return the names of the columns; none where the set brings none.

    Raises
    ------
    DataError
        If there is not one for each, or one is empty, there twice, or does not print.
    """
    if "columns" not in named:
        return []
    names = [str(name).strip() for name in np.asarray(named["columns"], dtype=str).ravel()]
    check_printed(names, f"{what}: columns")
    if len(names) != channels:
        raise DataError(f"{what}: {len(names)} names of columns for {channels} of them")
    if "" in names or len(set(names)) < len(names):
        raise DataError(f"{what}: a column without a name, or two of one name")
    return names


def check_printed(names: list[str], what: str) -> None:
    """Refuse names that do not print, or are longer than anybody reads: DataError."""
    for name in names:
        if not name.isprintable() or len(name) > 200:
            raise DataError(
                f"{what}: a name of {len(name)} characters that is too long or does not print: give names of at most "
                "200 characters, without control characters"
            )


def info_of_rows(
    name: str, stored: Stored, classes: tuple[str, ...], images: ImagesSettings, data: DataSettings
) -> DatasetInfo:
    """Describe rows or series, by the public constants that the run's settings state, or else the set itself.

    Parameters
    ----------
    images : ImagesSettings
        Whose ``mean`` and ``std`` stand over what the set brings.
    data : DataSettings
        Whose ``scale``, ``low`` and ``high`` say how values are brought to a common size.

    Raises
    ------
    DataError
        If the scale lacks its constants, or these do not fit; or values lie beyond what a model learns from.
    """
    assert data.kind != "images"
    channels, steps = stored.train.images.shape[1], stored.train.images.shape[3]
    if data.kind == "series" and data.axes == "auto" and channels > steps:
        log.warning(
            "%d channels of %d steps: are the axes [n, steps, channels]? Then set data.axes=channels_last, else "
            "data.axes=steps_last",
            *(channels, steps),
        )
    low, high = (
        _stated(key, stored.about, images, data, channels, name) for key in ("low", "high")
    )
    if bool(low) != bool(high) or any(a >= b for a, b in zip(low, high, strict=False)):
        raise DataError(
            f"{name}: data.low and data.high must both be there, and each low below its high"
        )
    mean, std = _scale(name, stored, images, data, channels, low, high)
    info = DatasetInfo(
        name,
        stored.train.images.shape[1:],
        classes,
        mean,
        std,
        1.0,
        arrays=data.kind,
        low=low,
        high=high,
        columns=tuple(stored.about.get("columns", ())),
    )
    if not info.largest <= _LARGEST:
        raise DataError(
            f"{name}: its bounds are {info.largest:.3g} as a model would take them, {_LARGEST:g} at the most: choose "
            "data.scale=minmax"
        )
    return info


def _scale(
    name: str,
    stored: Stored,
    images: ImagesSettings,
    data: DataSettings,
    channels: int,
    low: tuple[float, ...],
    high: tuple[float, ...],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return what is subtracted from each channel, and by what it is then divided."""
    if data.scale == "none":
        return (0.0,) * channels, (1.0,) * channels
    if data.scale == "minmax":
        if not low:
            raise DataError(_lacking(name, data, "data.low and data.high", channels))
        ends = list(zip(low, high, strict=True))
        return tuple(a / 2 + b / 2 for a, b in ends), tuple(b / 2 - a / 2 for a, b in ends)
    mean, std = (
        _stated(key, stored.about, images, data, channels, name) for key in ("mean", "std")
    )
    if not mean or not std:
        raise DataError(_lacking(name, data, "images.mean and images.std", channels))
    if min(std) <= 0:
        raise DataError(f"{name}: images.std must be above 0 for every column")
    return mean, std


def _lacking(name: str, data: DataSettings, keys: str, channels: int) -> str:
    return (
        f"{name}: data.scale={data.scale} needs {keys}, one number or {channels} with commas between them, stated by "
        "you as what is public: they are never computed from the data, of which they would tell"
    )


def _stated(
    key: str,
    about: Mapping[str, Any],
    images: ImagesSettings,
    data: DataSettings,
    channels: int,
    name: str,
) -> tuple[float, ...]:
    """Return a constant of each channel, as the settings state it or else the set; nothing where neither does."""
    section = data if key in ("low", "high") else images
    text = getattr(section, key)
    typed = text != type(section).model_fields[key].default
    given = text.split(",") if typed else about.get(key, [])
    try:
        values = [float(part) for part in given]
    except ValueError:
        values = [float("nan")]
    values *= channels if len(values) == 1 else 1
    if values and not (len(values) == channels and np.isfinite(values).all()):
        where = f"{'data' if section is data else 'images'}.{key}" if typed else f"{name}: {key}"
        raise DataError(f"{where} must be one finite number, or one for each of {channels} columns")
    return tuple(values)


def check_reach(dataset: Dataset, scale: str) -> None:
    """Refuse rows and series whose values no model would learn from, where nobody states their bounds.

    Raises
    ------
    DataError
        Naming the first such column, and what brings values to a common scale.
    """
    info = dataset.info
    if info.kind not in FORMS or info.low:
        return
    ends = [ends_of(split) for split in (dataset.train, dataset.test) if len(split)]
    beyond = (abs((np.array(ends) - info.mean) / info.std) > REACH).any((0, 1))
    if beyond.any():
        raise DataError(
            f"{info.name}: column {column_names(info)[int(beyond.argmax())]!r} has values beyond {REACH:g} with "
            f"data.scale={scale}, from which no model learns well: set data.scale=minmax with data.low and data.high, "
            "or data.scale=standard with images.mean and images.std (public constants, docs/data.md; `nectar data` "
            "shows what the columns hold)"
        )


def ends_of(split: Split) -> NDArray[np.float64]:
    """Return the smallest and the largest raw value of each column, [2, columns]."""
    values = split.images.astype(np.float64)
    return np.stack([values.min((0, 2, 3)), values.max((0, 2, 3))])
