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

#: tails below 2^50 / 2^64, one of 8,000: their quantile needs the slower function, and more bits than a word has
_RARE = np.uint64(1 << 50)


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

        A word is a sign and a tail probability of 63 bits, of which the quantile is taken in float64. A tail below
        2^-14 has 52 bits more: of the smallest, neighbouring quantiles would else be further apart than 2^-24. So every
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
            within = tails.astype(np.float64)
            within += 0.5
            within *= -(2.0**-63)
            within += 1.0
            torch.erfinv(torch.from_numpy(within), out=block).mul_(math.sqrt(2))
            rare = np.flatnonzero(tails < _RARE)
            if len(rare):
                beyond = (tails[rare] + uniform_of(self.words(len(rare))).numpy()) * 2.0**-64
                block[rare] = torch.special.ndtri(torch.from_numpy(beyond))
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
