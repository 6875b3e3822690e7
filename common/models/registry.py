"""The table of models: a new one is one file and one line. Nothing is imported until asked for."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """Where a model's class is, as ``package.module:Class``, and what it takes: "images" or "text"."""

    path: str
    takes: str


MODELS: dict[str, Architecture] = {
    "convnet": Architecture("common.models.convnet:ConvNet", "images"),
    "cnn": Architecture("common.models.cnn:CNN", "images"),
    "mlp": Architecture("common.models.mlp:MLP", "images"),
    "leafcnn": Architecture("common.models.leafcnn:LeafCNN", "images"),
    "lstm": Architecture("common.models.lstm:LSTM", "text"),
}
"""The models by name."""


def names(takes: str) -> str:
    """Return the names of the models that take "images" or "text", as a sentence lists them."""
    return ", ".join(name for name, known in MODELS.items() if known.takes == takes)


def network(name: str) -> Any:
    """Import the class of the model ``name``, one of `MODELS`."""
    module, _, attribute = MODELS[name].path.partition(":")
    if attribute in globals():  # in the one file of networks that `nectar export` writes
        return globals()[attribute]
    return getattr(importlib.import_module(module), attribute)
