"""Draws that nobody can make again: normal noise, and numbers to sample by, of the operating system's entropy."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray
from torch import Tensor

#: numbers that are made at a time, so that every pass over them stays in the cache
_BLOCK = 1 << 16

#: tails of fewer than 2^40 / 2^64 = 6e-8, of which 63 bits are too coarse for a grid of 2^-24, are given 52 more
_RARE = np.uint64(1 << 40)


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


class KeyStream:
    """Normal noise out of AES-256 in counter mode, with a key of the operating system's entropy.

    The noise is computational: whoever could tell AES from chance could tell this from noise. A key serves one process
    and whoever holds this object, for one round at a site. It is made at the first draw, again in a process that was
    forked since, and is never stored, copied or reset.
    """

    def __init__(self) -> None:
        self._process = 0

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return so many further words of 64 bits."""
        out = np.empty(count + 2, np.uint64)  # the cipher asks for room for a block more
        self._cipher().update_into(bytes(8 * count), out.data.cast("B"))
        return out[:count]

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Draw from the standard normal distribution.

        A word is a sign and a tail probability of 63 bits, of which the quantile is taken in float64. A tail so small
        that the quantiles of neighbouring probabilities would be apart by more than 2^-24 has 52 bits more. So every
        number of a grid of 2^-24 can come, up to 11.1. Beyond is one draw of 2^94.

        Returns
        -------
        Tensor
            Float64, on the CPU.
        """
        found = torch.empty(math.prod(shape), dtype=torch.float64)
        for block in torch.split(found, _BLOCK):
            words = self.words(len(block))
            tails = words >> np.uint64(1)
            probabilities = tails.astype(np.float64)
            probabilities += 0.5
            rare = np.flatnonzero(tails < _RARE)
            if len(rare):
                probabilities[rare] = tails[rare] + uniform_of(self.words(len(rare))).numpy()
            probabilities *= 2.0**-64
            torch.special.ndtri(torch.from_numpy(probabilities), out=block)
            signs = (words << np.uint64(63)).view(np.float64)  # 0.0 or -0.0
            block.copysign_(torch.from_numpy(signs))
        return found.reshape(tuple(shape))

    def _cipher(self) -> CipherContext:
        if self._process != os.getpid():
            key, start = os.urandom(32), os.urandom(16)
            self._stream = Cipher(algorithms.AES(key), modes.CTR(start)).encryptor()
            self._process = os.getpid()
        return self._stream

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or stored: two streams of one key give the same noise twice."""
        raise TypeError("a key stream belongs to one process and one round: make another")
