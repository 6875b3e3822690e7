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
from functools import lru_cache

import numpy as np
import torch


def derive(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit seed for ``purpose`` under the run's ``seed``.

    The parts are length-prefixed before hashing, so ("a", "bc") and ("ab", "c") differ.
    """
    texts = [f"{type(part).__name__}:{part}".encode() for part in (seed, *purpose)]
    prefixed = b"".join([len(text).to_bytes(4, "big") + text for text in texts])
    return int.from_bytes(hashlib.sha256(prefixed).digest()[:8], "big") >> 1


def generator(
    seed: int, *purpose: str | int, device: torch.device | str = "cpu"
) -> torch.Generator:
    """Return a torch generator for ``purpose`` (draws on another kind of device give other numbers)."""
    return torch.Generator(device=device).manual_seed(derive(seed, *purpose))


def numpy_generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """Return a NumPy generator for ``purpose``."""
    return np.random.default_rng(derive(seed, *purpose))


#: packages whose code draws of generators that it is given, or of torch's own alone
_DRAWS_OF_TORCH = frozenset({"torch", "common", "synth", "client_app", "strategies"})


def draws_of_torch_alone(*parts: object) -> bool:
    """Return whether no code of a user's own is among ``parts``: modules of torch's, functions, or None for none."""
    origins = {getattr(part, "__module__", "") for part in parts if part is not None}
    return all(map(_is_of_torch_alone, origins))


@lru_cache(maxsize=1024)
def _is_of_torch_alone(module: object) -> bool:
    return str(module).partition(".")[0] in _DRAWS_OF_TORCH


@contextmanager
def process_wide(seed: int, *purpose: str | int, torch_alone: bool = False) -> Iterator[None]:
    """Let the process-wide generators of torch, NumPy and Python start from ``purpose``; put them back afterwards.

    For code that asks no generator of ours: a user's own network, its initial weights and its dropout. Where none of
    it can draw from NumPy's and Python's, ``torch_alone`` leaves those as they are: they take a hundred times as long.
    """
    drawn = derive(seed, *purpose)
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    others = None if torch_alone else (random.getstate(), np.random.get_state())  # noqa: NPY002
    before = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if on_gpu else []
    if not torch_alone:
        random.seed(drawn)
        np.random.seed(drawn % 2**32)  # noqa: NPY002
    torch.default_generator.manual_seed(drawn)
    if on_gpu:
        torch.cuda.manual_seed_all(drawn)
    try:
        yield
    finally:
        if others is not None:
            random.setstate(others[0])
            np.random.set_state(others[1])  # noqa: NPY002
        torch.set_rng_state(before)
        if on_gpu:
            torch.cuda.set_rng_state_all(cuda)
