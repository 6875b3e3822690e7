"""Draws that nobody can make again: normal noise, and numbers to sample by, of the operating system's entropy."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def system_uniform(shape: Sequence[int]) -> Tensor:
    """Draw from the uniform distribution over (0, 1) with the operating system's entropy alone.

    Each number is an odd multiple of 2^-53.

    Returns
    -------
    Tensor
        Float64, on the CPU.
    """
    words = np.frombuffer(os.urandom(8 * math.prod(shape)), np.uint64)
    return uniform_of(words).reshape(tuple(shape))


def uniform_of(words: NDArray[np.uint64]) -> Tensor:
    """Return what words of 64 random bits make of (0, 1): an odd multiple of 2^-53 each, float64 of their shape."""
    return torch.from_numpy(((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)


def system_normal(shape: Sequence[int]) -> Tensor:
    """Draw from the standard normal distribution with the operating system's entropy alone.

    No seed gives these numbers again, and no other generator is touched. Each is the quantile of an odd multiple of
    2^-53, computed in float64: none is beyond 8.21, which a normal variable is once in 4.5e15 draws.

    Returns
    -------
    Tensor
        Float32, on the CPU.
    """
    normal: Tensor = torch.special.ndtri(system_uniform(shape))
    return normal.float()
