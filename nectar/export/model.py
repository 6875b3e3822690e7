"""An exported model, read again: by the same code as stands in its folder, none of which is run from there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor, nn

from common.code.imports import is_import_path
from common.config.own_parts import Judge
from common.errors import ConfigError
from nectar.export import plain
from nectar.export.split import RunSplit

_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RuntimeError,
    SafetensorError,
)


@dataclass(frozen=True)
class ExportedModel:
    """The network on the CPU in evaluation mode, what it takes, and its classes in the order of the logits.

    ``run`` is what model.json says of the run, ``split`` how it divided its folder of images, if it had one.
    """

    folder: Path
    network: nn.Module
    shape: tuple[int, int, int]
    scale: float
    classes: tuple[str, ...]
    run: Mapping[str, Any] = field(default_factory=dict)
    split: RunSplit | None = None

    @classmethod
    def open(cls, folder: Path, judge: Judge | None = None) -> ExportedModel:
        """Read an export, its network's import path put before ``judge``; ConfigError if it is none or damaged."""
        try:
            about = plain.describe(folder)
            channels, height, width = (int(n) for n in about["input"]["shape"])
            scale = float(about["input"]["scale"])
            classes = tuple(str(name) for name in about["classes"])
            name = str(about["model"]["name"])
            if judge is not None and is_import_path(name):
                judge("model.name", name)
            run, split = dict(about["run"]), RunSplit.of(about)
            _check_constants(about["input"])
            network = plain.load(folder)
        except ImportError as error:
            raise ConfigError(
                f"{folder} needs the module of its network, which cannot be imported ({error}): install it, or start "
                "nectar in the folder that holds it"
            ) from None
        except _UNREADABLE as error:
            reason = str(error).splitlines()[-1].strip() if str(error) else type(error).__name__
            raise ConfigError(
                f"{folder} is not an exported model that can be read ({reason}): give a folder that `nectar export` "
                "made"
            ) from None
        return cls(folder, network, (channels, height, width), scale, classes, run, split)

    def inputs(self, raw: Tensor) -> Tensor:
        """Return raw images [n, C, H, W] normalised."""
        return plain.normalise(raw, self.folder)


def _check_constants(given: Mapping[str, Any]) -> None:
    """Refuse constants by which no image can be normalised: of a standard deviation of 0 each loss would be NaN."""
    for key in ("scale", "mean", "std"):
        for value in [given[key]] if key == "scale" else given[key]:
            if not math.isfinite(value) or (key != "mean" and value <= 0):
                above = "" if key == "mean" else " above 0"
                raise ValueError(
                    f"model.json's {key} holds {value}, where a finite number{above} is needed"
                )
