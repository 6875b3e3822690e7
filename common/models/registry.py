"""The table of models: a new one is one file and one line. Nothing is imported until asked for."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType
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
    "logistic": Architecture("common.models.logistic:Logistic", "images"),
    "resnet18": Architecture("common.models.resnet:ResNet18", "images"),
    "resnet34": Architecture("common.models.resnet:ResNet34", "images"),
    "vgg11": Architecture("common.models.vgg:VGG11", "images"),
    "vit": Architecture("common.models.vit:ViT", "images"),
    "encoder": Architecture("common.models.encoder:Encoder", "images"),
    "vae": Architecture("common.models.encoder:VAEEncoder", "images"),
    "lstm": Architecture("common.models.lstm:LSTM", "text"),
}
"""The models by name."""


def names(takes: str) -> str:
    """Return the names of the models that take "images" or "text", as a sentence lists them."""
    return ", ".join(name for name, known in MODELS.items() if known.takes == takes)


def modules() -> list[ModuleType]:
    """Import the modules of all models, each once, in the table's order."""
    paths = dict.fromkeys(known.path.partition(":")[0] for known in MODELS.values())
    return [importlib.import_module(path) for path in paths]


def network(name: str) -> Any:
    """Import the class of the model ``name``, one of `MODELS`."""
    module, _, attribute = MODELS[name].path.partition(":")
    if attribute in globals():  # in the one file of networks that `nectar export` writes
        return globals()[attribute]
    return getattr(importlib.import_module(module), attribute)
