"""Generators derived from what a draw is for, so that the same command gives the same numbers in every engine.

A generator is keyed by (run seed, purpose), the purpose being any sequence of strings and integers such as
``("feddm", round, site, "noise")``. Two purposes never share a stream, and the order in which devices happen to
answer, or the process in which they run, changes nothing.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def derive(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit seed for ``purpose`` under the run's ``seed``.

    The parts are length-prefixed before hashing, so ("a", "bc") and ("ab", "c") differ.
    """
    digest = hashlib.sha256()
    for part in (seed, *purpose):
        text = f"{type(part).__name__}:{part}".encode()
        digest.update(len(text).to_bytes(4, "big") + text)
    return int.from_bytes(digest.digest()[:8], "big") >> 1


def generator(
    seed: int, *purpose: str | int, device: torch.device | str = "cpu"
) -> torch.Generator:
    """Return a torch generator for ``purpose`` (draws on another kind of device give other numbers)."""
    return torch.Generator(device=device).manual_seed(derive(seed, *purpose))


def numpy_generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """Return a NumPy generator for ``purpose``."""
    return np.random.default_rng(derive(seed, *purpose))
