"""Tensors over memory that is somebody else's: read as they are, and copied when they are asked for."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class Lent(Mapping[str, Tensor]):
    """Tensors by name, each copied when it is first asked for, so that it may be written to.

    Bytes that arrive are shared: by the server with the devices of its process, and by these with each other. Most of
    what is done with weights reads them, or copies them anyway; that goes by :meth:`read_only`, and costs no memory.

    Parameters
    ----------
    views : mapping of str to Tensor
        Nobody writes to them.
    """

    def __init__(self, views: Mapping[str, Tensor]) -> None:
        self._now = dict(views)
        self._own: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        """Return a tensor that is this mapping's own, the same one each time; the view of it is let go."""
        if name not in self._own:
            self._now[name] = self._now[name].clone()
            self._own.add(name)
        return self._now[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now)

    def __len__(self) -> int:
        return len(self._now)

    def read_only(self) -> Mapping[str, Tensor]:
        """Return the tensors as they are at present; they are not to be written to."""
        return self._now


def view_of(array: npt.NDArray[Any]) -> Tensor:
    """Return a tensor over the memory of a read-only array, which nobody may write to.

    A header of an odd length puts the values at an odd place in what arrived, where not every machine reads numbers.
    """
    return torch.from_numpy(array if array.flags.aligned else array.copy())


def _hear_the_warning() -> None:
    """Let torch warn, unheard, of the one thing that `view_of` does; it does so once a process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        view_of(np.frombuffer(b"\0", np.uint8))


_hear_the_warning()
