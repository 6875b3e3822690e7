"""Draws of a seed."""

from __future__ import annotations

import torch


def rng(seed: int = 0) -> torch.Generator:
    """Return a generator that begins with ``seed``."""
    return torch.Generator().manual_seed(seed)
