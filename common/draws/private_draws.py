"""Each example's own random numbers: of the system's entropy, or, in a simulation, of a seed and its own bytes."""

from __future__ import annotations

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NoReturn

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray
from torch import Tensor

from common.samples.inputs import Samples

Words = NDArray[np.uint64]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mixed(words: Words) -> Words:
    """Return SplitMix64's output function of each word (Steele, Lea and Flood, 2014)."""
    words = (words ^ (words >> np.uint64(30))) * _FIRST
    words = (words ^ (words >> np.uint64(27))) * _SECOND
    found: Words = words ^ (words >> np.uint64(31))
    return found


class _Rows(ABC):
    """The base of both kinds of draws: numbers from 64-bit words, a row for each example."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @abstractmethod
    def __len__(self) -> int:
        """Return n."""

    @abstractmethod
    def _words(self, count: int) -> Words:
        """Return so many further words of every row, [n, count]."""

    def uniform(self, *shape: int) -> Tensor:
        """Return numbers from (0, 1), float64 [n, *shape]."""
        drawn = uniform_of(self._words(math.prod(shape)))
        return drawn.reshape(len(self), *shape).to(self._device)

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers, float32 [n, *shape]."""
        drawn = uniform_of(self._words(math.prod(shape)))
        found: Tensor = torch.special.ndtri(drawn).float().reshape(len(self), *shape)
        return found.to(self._device)


class SystemRows(_Rows):
    """Draws of the operating system's entropy alone."""

    def __init__(self, count: int, device: torch.device) -> None:
        super().__init__(device)
        self._count = count

    def __len__(self) -> int:
        """Return n."""
        return self._count

    def _words(self, count: int) -> Words:
        drawn = np.frombuffer(os.urandom(8 * self._count * count), np.uint64)
        return drawn.reshape(self._count, count)

    def part(self, rows: slice) -> SystemRows:
        """Return draws for some of the rows."""
        return SystemRows(len(range(self._count)[rows]), self._device)


class SeededRows(_Rows):
    """Draws that a seed, another one for each step, and an example's own bytes decide, and no other example.

    ``hashes``, uint64 [n], are the examples', from `example_hashes`.
    """

    def __init__(self, seed: int, hashes: Words, device: torch.device) -> None:
        super().__init__(device)
        self._seeds, self._taken = mixed(hashes ^ mixed(np.array([seed], np.uint64))), 0

    def __len__(self) -> int:
        """Return n."""
        return len(self._seeds)

    def _words(self, count: int) -> Words:
        at = np.arange(self._taken + 1, self._taken + 1 + count, dtype=np.uint64)
        self._taken += count
        return mixed(self._seeds[:, None] + at * _STEP)

    def part(self, rows: slice) -> SeededRows:
        """Return the draws that are to come of some of the rows."""
        found = object.__new__(SeededRows)
        found._device, found._seeds, found._taken = self._device, self._seeds[rows], self._taken
        return found


def keyed_hashes(samples: Samples, key: bytes = b"") -> Words:
    """Return a hash of each example's stored bytes and label, uint64 [n]: of nothing else but ``key``.

    Whoever lacks the key, at most 64 bytes, learns nothing from a hash of what the example is.
    """
    images, labels = (np.ascontiguousarray(t.cpu().numpy()) for t in (samples.raw, samples.labels))
    rows = (
        [part.reshape(len(samples), -1).view(np.uint8) for part in (images, labels)]
        if len(samples)
        else []
    )
    return keyed_digests(map(b"".join, zip(*(map(bytes, part) for part in rows), strict=True)), key)


def keyed_digests(contents: Iterable[bytes], key: bytes) -> Words:
    """Return a hash of each of some contents, uint64 [n], under ``key``."""
    digests = (hashlib.blake2b(one, digest_size=8, key=key).digest() for one in contents)
    return np.frombuffer(b"".join(digests), np.uint64)


@lru_cache(maxsize=4)
def example_hashes(samples: Samples) -> Words:
    """Return a hash of each example, uint64 [n], with equal ones numbered 0, 1, 2 and so on."""
    plain = keyed_hashes(samples)
    _, inverse, counts = np.unique(plain, return_inverse=True, return_counts=True)
    order = np.argsort(inverse, kind="stable")
    firsts = np.repeat(np.cumsum(counts) - counts, counts)
    copy = np.empty(len(plain), np.uint64)
    copy[order] = np.arange(len(plain)) - firsts
    return mixed(plain + copy * _STEP)


# ---- entropy -------------------------------------------------------------------------------------
# Draws that cannot be repeated: normal noise, and numbers to sample by, from the operating system's entropy.

#: numbers that are made at a time, so that every pass over them stays in the cache
_BLOCK = 1 << 16

#: tails below 2^50 / 2^64, one of 8,000: their quantile needs the slower function, and more bits than a word has
_RARE = np.uint64(1 << 50)


def uniform_of(words: NDArray[np.uint64]) -> Tensor:
    """Return uniform numbers in (0, 1) from words of 64 random bits: odd multiples of 2^-53, float64 of their shape."""
    return torch.from_numpy(((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)


class KeyStream:
    """Normal noise out of AES-256 in counter mode, with a key of the operating system's entropy.

    The noise is computational: distinguishing it from true noise means breaking AES. A key serves one process
    and the owner of this object, for one round at a site. It is made at the first draw, again in a process that was
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
        """Draw from the standard normal distribution: float64, on the CPU.

        A word is a sign and a tail probability of 63 bits, of which the quantile is taken in float64. A tail below
        2^-14 has 52 bits more: else neighbours of the smallest quantiles would differ by more than 2^-24. So every
        number of a grid of 2^-24 can come, up to 11.1. Beyond is one draw of 2^94.
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
