"""Generators derived from what a draw is for, so that the same command gives the same numbers in every engine.

A generator is keyed by (run seed, purpose), the purpose being any sequence of strings and integers such as
``("feddm", round, site, "noise")``. Two purposes never share a stream, and the order in which devices happen to
answer, or the process in which they run, changes nothing.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def process_wide(seed: int, *purpose: str | int) -> Iterator[None]:
    """Let the process-wide generators of torch, NumPy and Python start from ``purpose``; put them back afterwards.

    For code that asks no generator of ours: a user's own network, its initial weights and its dropout.
    """
    drawn = derive(seed, *purpose)
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    cuda = torch.cuda.get_rng_state_all() if on_gpu else []
    random.seed(drawn)
    np.random.seed(drawn % 2**32)  # noqa: NPY002
    torch.default_generator.manual_seed(drawn)
    if on_gpu:
        torch.cuda.manual_seed_all(drawn)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])
        if on_gpu:
            torch.cuda.set_rng_state_all(cuda)
