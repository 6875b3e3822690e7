"""Draws that nobody can make again: noise and Poisson samples of the operating system's entropy."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def system_normal(shape: Sequence[int]) -> Tensor:
    """Draw from the standard normal distribution with the operating system's entropy alone.

    No seed gives these numbers again, and no other generator is touched. Each is the quantile of an odd multiple of
    2^-53, computed in float64: none is beyond 8.21, which a normal variable is once in 4.5e15 draws.

    Parameters
    ----------
    shape : sequence of int
        Of the result.

    Returns
    -------
    Tensor
        Float32, on the CPU.
    """
    words = np.frombuffer(os.urandom(8 * math.prod(shape)), np.uint64)
    uniform = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    normal: Tensor = torch.special.ndtri(torch.from_numpy(uniform))
    return normal.float().reshape(tuple(shape))


def system_sample(count: int, rate: float) -> Tensor:
    """Draw a Poisson sample with the operating system's entropy alone: each position by itself, with the same chance.

    The chance is ``rate`` up to 2^-53: a uniform multiple of that below it.

    Parameters
    ----------
    count : int
        Positions.
    rate : float
        The chance of each, from 0 to 1.

    Returns
    -------
    Tensor
        The positions drawn, in order, int64, on the CPU; there may be none.
    """
    words = np.frombuffer(os.urandom(8 * count), np.uint64)
    drawn = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53 < rate
    return torch.from_numpy(np.flatnonzero(drawn))
