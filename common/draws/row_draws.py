"""Each example's own random numbers: of the system's entropy, or, in a simulation, of a seed and its own bytes."""

from __future__ import annotations

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.draws.entropy import uniform_of
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
    """What the two kinds share: numbers out of 64-bit words, a row an example."""

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
    """Draws of the operating system's entropy alone.

    Parameters
    ----------
    count : int
        n.
    """

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
    """Draws that a seed and an example's own bytes decide, and no other example.

    Parameters
    ----------
    seed : int
        What they are for: another one for each step.
    hashes : uint64 array [n]
        Of the examples, as `example_hashes` gives them.
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

    Parameters
    ----------
    key : bytes
        At most 64 of them; whoever lacks it learns nothing from a hash of what the example is.
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
    """Return a hash of each example, uint64 [n], equal ones told apart by which of them it is: 0, 1, 2 and so on."""
    plain = keyed_hashes(samples)
    _, inverse, counts = np.unique(plain, return_inverse=True, return_counts=True)
    order = np.argsort(inverse, kind="stable")
    firsts = np.repeat(np.cumsum(counts) - counts, counts)
    copy = np.empty(len(plain), np.uint64)
    copy[order] = np.arange(len(plain)) - firsts
    return mixed(plain + copy * _STEP)
