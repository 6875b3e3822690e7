"""What a Flower strategy has learned so far, read off its attributes, since Flower has no state_dict for it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Strategy


def snapshot(strategy: Strategy) -> dict[str, Any]:
    """Return a deep copy of the attributes of a strategy, and of the strategies it wraps, that can be copied."""
    state: dict[str, Any] = {}
    for name, value in vars(strategy).items():
        if isinstance(value, Strategy):
            state[name] = snapshot(value)
        elif not callable(value):
            state[name] = copy.deepcopy(value)
    return state


def changed_attributes(strategy: Strategy, fresh: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that differ from ``fresh``, a ``snapshot``; wrapped strategies as nested mappings.

    A strategy with ``state_dict`` is asked instead.
    """
    if hasattr(strategy, "state_dict"):
        return {"state_dict": strategy.state_dict()}
    changed: dict[str, Any] = {}
    for name, value in vars(strategy).items():
        if isinstance(value, Strategy):
            inner = changed_attributes(value, fresh.get(name, {}))
            if inner:
                changed[name] = inner
        elif not callable(value) and (name not in fresh or not _equal(value, fresh[name])):
            changed[name] = value
    return changed


def restore_attributes(strategy: Strategy, state: Mapping[str, Any]) -> None:
    """Put back what ``changed_attributes`` returned."""
    if "state_dict" in state and hasattr(strategy, "load_state_dict"):
        strategy.load_state_dict(state["state_dict"])
        return
    for name, value in state.items():
        held = getattr(strategy, name, None)
        if isinstance(held, Strategy):
            restore_attributes(held, value)
        else:
            setattr(strategy, name, value)


def _equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | torch.Tensor):
        return one.shape == other.shape and bool((one == other).all())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, Mapping) and not isinstance(one, ArrayRecord):
        return one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, ArrayRecord):
        return list(one) == list(other) and all(one[k].data == other[k].data for k in one)
    return bool(one == other)
