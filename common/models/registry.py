"""The table of models: a new one is one file and one line. Nothing is imported before it is used."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """Where a model's class is, as ``package.module:Class``, and what it takes, one or several of `KINDS`."""

    path: str
    takes: str
    also: tuple[str, ...] = ()


KINDS = {"images": "images", "table": "a table", "series": "series", "text": "text"}
"""What data are, and how a sentence says so."""

_ANY_SHAPE = ("table", "series")


MODELS: dict[str, Architecture] = {
    "convnet": Architecture("common.models.convnet:ConvNet", "images"),
    "cnn": Architecture("common.models.convnet:CNN", "images"),
    "mlp": Architecture("common.models.mlp:MLP", "images", _ANY_SHAPE),
    "leafcnn": Architecture("common.models.convnet:LeafCNN", "images"),
    "logistic": Architecture("common.models.mlp:Logistic", "images", _ANY_SHAPE),
    "resnet18": Architecture("common.models.resnet:ResNet18", "images"),
    "resnet34": Architecture("common.models.resnet:ResNet34", "images"),
    "vgg11": Architecture("common.models.convnet:VGG11", "images"),
    "vit": Architecture("common.models.vit:ViT", "images"),
    "encoder": Architecture("common.models.encoder:Encoder", "images"),
    "vae": Architecture("common.models.encoder:VAEEncoder", "images"),
    "conv1d": Architecture("common.models.mlp:Conv1d", "series"),
    "ridge": Architecture("common.models.ridge:RidgeModel", "images", _ANY_SHAPE),
    "ridgenetwork": Architecture("common.models.ridge:RidgeNetwork", "images"),
    "lstm": Architecture("common.models.lstm:LSTM", "text"),
}
"""The models by name."""


def names(kind: str) -> str:
    """Return the names of the models that take data of a kind, as a sentence lists them."""
    return ", ".join(name for name in MODELS if takes(name, kind))


def takes(name: str, kind: str) -> bool:
    """Return whether the model ``name``, one of `MODELS`, takes data of a kind, one of `KINDS`."""
    return kind in (MODELS[name].takes, *MODELS[name].also)


def misfit(name: str, kind: str) -> str:
    """Return the data that a model takes, instead of the given kind, and the models to choose for it."""
    known = MODELS[name]
    taken = ", ".join(KINDS[one] for one in (known.takes, *known.also))
    return (
        f"model.name={name} takes {taken}, this data set is {KINDS[kind]}: choose {names(kind)}, or name a model "
        "of yours"
    )


def network_class(name: str) -> Any:
    """Import the class of the model ``name``, one of `MODELS`."""
    module, _, attribute = MODELS[name].path.partition(":")
    return getattr(importlib.import_module(module), attribute)
