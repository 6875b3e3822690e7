"""How plain numbers travel: floats as float32, float16 or a byte between a group's extremes, classes as integers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common.errors import PayloadError
from common.wire.codec import as_half, describe, require_finite
from common.wire.compression import Arrival, NDArray

FLOAT_CODECS = ("float32", "float16")
CODECS = (*FLOAT_CODECS, "uint8")

ROUNDED = 2e-3
"""How far rounding may take a value beyond its bound, as a share of it: float16 keeps eleven bits, bfloat16 eight."""


def pack(name: str, values: Tensor, codec: str) -> NDArray:
    """Return floating ``values``, on any device, as an array of the dtype ``codec``, float32 or float16.

    Raises
    ------
    PayloadError
        If a value is not finite, or beyond what float16 holds.
    """
    values = values.detach().cpu().contiguous()
    require_finite(name, values)
    packed = as_half(name, values) if codec == "float16" else values.float()
    return np.asarray(packed.numpy())


def unpack(name: str, array: Arrival, shape: tuple[int, ...], codec: str) -> Tensor:
    """Return what ``pack`` made as float32 of ``shape``; PayloadError unless dtype, shape and values are right."""
    require_shape(name, array, shape, codec)
    values = torch.from_numpy(np.array(array.values())).float()
    require_finite(name, values)
    return values


def require_shape(name: str, array: Arrival, shape: tuple[int, ...], dtype: str) -> None:
    """PayloadError unless ``array`` has ``shape`` and the dtype of that name."""
    if array.dtype.name != dtype or array.shape != shape:
        raise PayloadError(
            f"{name} is {describe(array)} where {dtype} of shape {shape} was expected"
        )


def pack_classes(labels: Tensor) -> NDArray:
    """Return int64 ``labels``, on any device, in the smallest unsigned integer type that holds them."""
    values = labels.detach().cpu().numpy()
    return np.asarray(values.astype(np.min_scalar_type(int(values.max(initial=0)))))


def unpack_classes(name: str, array: Arrival, shape: tuple[int, ...], classes: int) -> Tensor:
    """Return what ``pack_classes`` made as int64 of ``shape``; PayloadError unless all are from 0 to classes - 1."""
    if array.dtype.kind not in "iu" or array.shape != shape:
        raise PayloadError(
            f"{name} is {describe(array)} where integers of shape {shape} were expected"
        )
    values = array.values()
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    if low < 0 or high >= classes:
        raise PayloadError(
            f"a label is {low if low < 0 else high} where 0 to {classes - 1} are allowed"
        )
    return torch.from_numpy(values.astype(np.int64))


def require_shares(name: str, rows: Tensor) -> None:
    """PayloadError unless each row of ``rows`` [n, classes] is of shares: none below 0, together 1.

    Float16 and bfloat16 take each share, and so their sum, at most 2 in 1000 away from what it was.
    """
    if rows.numel() and not (
        float(rows.min()) >= 0 and float((rows.sum(-1) - 1).abs().max()) <= ROUNDED
    ):
        raise PayloadError(
            f"{name} are not shares of the classes: none may be below 0, and those of a row must sum to 1"
        )


def quantise(values: Tensor, axis: int) -> tuple[list[list[float]], NDArray]:
    """Return finite ``values`` in 256 levels between the extremes that each index along ``axis`` has.

    Returns
    -------
    range : list of two lists of float
        The minima and the maxima along ``axis``.
    levels : uint8 array of the shape of ``values``
        0 at the minimum, 255 at the maximum: the error is at most half of (hi - lo) / 255.
    """
    others = [d for d in range(values.ndim) if d != axis]
    lo = values.amin(dim=others, keepdim=True).double()
    hi = values.amax(dim=others, keepdim=True).double()
    step = ((hi - lo) / 255).clamp_min(torch.finfo(torch.float32).tiny)
    levels = ((values.double() - lo) / step).round().clamp(0, 255)
    return [lo.flatten().tolist(), hi.flatten().tolist()], levels.to(torch.uint8).numpy()


def dequantise(name: str, levels: NDArray, header: Mapping[str, Any], axis: int) -> Tensor:
    """Return float32 values from ``quantise``'s levels and the range that lies in the header.

    Raises
    ------
    PayloadError
        If the header has no finite minimum and maximum for each index along ``axis``.
    """
    groups = levels.shape[axis]
    problem = PayloadError(
        f"{name} needs a range of {groups} finite minima and maxima in its header"
    )
    try:
        bounds = torch.tensor(header.get("range"), dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise problem from None
    if bounds.shape != (2, groups) or not bool(torch.isfinite(bounds).all()):
        raise problem
    along = [groups if d == axis else 1 for d in range(levels.ndim)]
    lo, hi = bounds[0].view(along), bounds[1].view(along)
    return (lo + torch.from_numpy(np.array(levels)).double() * ((hi - lo) / 255)).float()
