"""Fedssyn's redistribution: everybody's images mixed, and cut into equal shares (Chen et al., 2023, section 2.2)."""

from __future__ import annotations

import torch
from torch import Tensor


def equal_shares(count: int, parts: int, generator: torch.Generator) -> list[Tensor]:
    """Return the positions 0 to ``count`` - 1 in a random order, cut into ``parts`` whose sizes differ by one at most.

    Returns
    -------
    list of Tensor
        Int64, the positions of each share.
    """
    order = torch.randperm(count, generator=generator)
    return list(torch.tensor_split(order, parts))
