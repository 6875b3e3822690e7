"""The names of tensors in a state that holds those of several parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor


def numbered(prefix: str, tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    """Return tensors that have no names by their places: ``prefix`` 0, ``prefix`` 1, ..."""
    return {f"{prefix}{place}": tensor for place, tensor in enumerate(tensors)}


def in_order(prefix: str, state: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the tensors that ``numbered`` named."""
    found = under(prefix, state)
    return [found[str(place)] for place in range(len(found))]


def under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what has names that begin with ``prefix``, without it."""
    return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}
