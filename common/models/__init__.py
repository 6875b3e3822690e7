"""Classifiers with an embedding, built by name; pure PyTorch.

The table of names is read without torch: configurations are resolved where no model is ever built.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from common.models.registry import MODELS

if TYPE_CHECKING:
    from common.models.building import build
    from common.models.classifier import Classifier, couples_samples

__all__ = ["MODELS", "Classifier", "build", "couples_samples"]

_HOMES = {"build": "building", "Classifier": "classifier", "couples_samples": "classifier"}


def __getattr__(name: str) -> Any:
    """Import what needs torch on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
