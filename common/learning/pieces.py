"""Large tensors a piece at a time, so that what is computed on the way takes a piece's memory and no tensor's."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

#: values of a piece: a megabyte of float32, which a processor's cache holds
_SIZE = 2**18


def pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield tensors of one shape side by side in flat pieces, views of those that lie in one piece in memory.

    Parameters
    ----------
    tensors : Tensor
        Of one shape; small ones are yielded as they are.
    """
    if tensors[0].numel() <= _SIZE:
        yield tensors
    else:
        yield from zip(*(torch.split(t.reshape(-1), _SIZE) for t in tensors), strict=True)
