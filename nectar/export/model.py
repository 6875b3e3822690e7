"""An exported model, read again from model.json and model.safetensors; no code from its folder is run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from common.code.imports import is_import_path, load
from common.config.own_parts import Judge
from common.errors import ConfigError
from common.models.building import build
from common.models.own import make
from nectar.export.split import RunSplit

MODEL_SCHEMA = 1

_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, RuntimeError)
_UNREADABLE = (OSError, SafetensorError, *_DAMAGED)


@dataclass(frozen=True)
class ExportedModel:
    """The network on the CPU in evaluation mode, and what model.json says of it.

    Attributes
    ----------
    input : mapping
        Shape, scale and normalisation of what it takes.
    classes : tuple of str
        In the order of the logits.
    split : RunSplit, optional
        How its run divided its folder of images, if it had one.
    """

    folder: Path
    network: nn.Module
    input: Mapping[str, Any]
    classes: tuple[str, ...]
    run: Mapping[str, Any]
    split: RunSplit | None = None

    @classmethod
    def open(cls, folder: Path, judge: Judge | None = None) -> ExportedModel:
        """Read an export, its network's import path put before ``judge``; ConfigError if it is none or damaged."""
        try:
            about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
            if about["schema"] != MODEL_SCHEMA:
                raise ValueError(
                    f"model.json has schema {about['schema']}, this reads {MODEL_SCHEMA}"
                )
            given = {**about["input"], "scale": float(about["input"]["scale"])}
            channels, height, width = (int(n) for n in given["shape"])
            given["shape"] = shape = (channels, height, width)
            classes = tuple(str(name) for name in about["classes"])
            network = _network(about["model"], shape, len(classes), judge)
            _check_constants(given)
            network.load_state_dict(load_file(folder / "model.safetensors"))
            run = dict(about["run"])
            return cls(folder, network.eval(), given, classes, run, RunSplit.of(about))
        except _UNREADABLE as error:
            reason = str(error).splitlines()[-1].strip() if str(error) else type(error).__name__
            raise ConfigError(
                f"{folder} is not an exported model that can be read ({reason}): give a folder that `nectar export` "
                "made"
            ) from None

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of an image: channels, height, width."""
        shape: tuple[int, int, int] = self.input["shape"]
        return shape

    @property
    def scale(self) -> float:
        """The largest raw value."""
        return float(self.input["scale"])

    def inputs(self, raw: Tensor) -> Tensor:
        """Return raw images [n, C, H, W] normalised: (raw / scale - mean) / std, float32."""
        mean, std = (torch.tensor(self.input[key], dtype=torch.float64) for key in ("mean", "std"))
        factor, offset = 1 / (self.scale * std), -mean / std
        shift, gain = (part.float()[:, None, None].to(raw.device) for part in (offset, factor))
        return torch.addcmul(shift, raw.float(), gain)


def _network(
    model: Mapping[str, Any], shape: tuple[int, ...], classes: int, judge: Judge | None
) -> nn.Module:
    """Build Nectar's own network, or call what the import path names if ``judge`` allows it."""
    name = str(model["name"])
    if not is_import_path(name):
        return build(**model, shape=shape, classes=classes)
    if judge is not None:
        judge("model.name", name)
    return make(load(name), name, shape, classes)


def _check_constants(given: Mapping[str, Any]) -> None:
    """Refuse constants by which no image can be normalised: of a standard deviation of 0 each loss would be NaN."""
    for key in ("scale", "mean", "std"):
        for value in [given[key]] if key == "scale" else given[key]:
            if not math.isfinite(value) or (key != "mean" and value <= 0):
                above = "" if key == "mean" else " above 0"
                raise ValueError(
                    f"model.json's {key} holds {value}, where a finite number{above} is needed"
                )
