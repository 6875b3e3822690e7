"""An exported model, read from model.json and model.safetensors; no code from its folder is run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from common.code.imports import is_import_path, load
from common.config.resolved import Config
from common.config.user_parts import ImportPolicy
from common.data.published.catalogue import NAMES
from common.data.user.rows import cell_names
from common.errors import ConfigError
from common.models.building import build
from common.models.user_model import make
from common.settings.sections import PartitionSettings, kind_of

MODEL_SCHEMA = 1

_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, RuntimeError)
_UNREADABLE = (OSError, SafetensorError, *_DAMAGED)


class RunSplit(BaseModel):
    """How a run divided its own pictures or rows: with its seed and classes, what it takes to divide them again.

    It names no picture. ``folder`` says whether they are one folder of images, which can be scored; ``sites`` and
    ``partition`` are there where the sites hold the validation share.
    """

    model_config = ConfigDict(frozen=True)

    folder: bool
    test_share: float
    validation: float = 0.0
    images: int = 0
    sites: int | None = None
    partition: PartitionSettings | None = None
    group: str = ""

    @classmethod
    def of(cls, config: Config) -> dict[str, Any] | None:
        """Return what model.json states of a run of ``config``; None of a published data set."""
        if config.dataset in NAMES:
            return None
        data, more = config.data, dict[str, Any]()
        if data.validated_at_sites:
            more = {"sites": config.federation.sites, "partition": config.partition}
        if config.images.group:
            more["group"] = config.images.group
        split = cls(
            folder=is_folder(config),
            test_share=data.test_share,
            validation=data.validation,
            images=data.images,
            **more,
        )
        return split.model_dump(exclude_unset=True)

    @property
    def settings(self) -> dict[str, Any]:
        """The run's settings of the division."""
        found: dict[str, Any] = {
            "data.test_share": self.test_share,
            "data.validation": self.validation,
            "data.images": self.images,
        }
        if self.partition is not None:
            own = self.partition.model_dump(exclude_defaults=True)
            found |= {"data.validation_at": "sites", "federation.sites": self.sites}
            found |= {f"partition.{key}": value for key, value in own.items()}
        return found


def is_folder(config: Config) -> bool:
    """Return whether the run learned from one folder of images."""
    return bool(config.images.folder) and not config.images.sites and not kind_of(config.dataset)


@dataclass(frozen=True)
class ExportedModel:
    """The network on the CPU in evaluation mode, and what model.json says of it.

    Attributes
    ----------
    input : mapping
        Shape, scale and normalisation of what it takes.
    classes : tuple of str
        In the order of the logits.
    run : mapping
        The run that it comes from: its data set, seed, checksum of its data.
    split : RunSplit, optional
        How the run divided its own data.
    """

    folder: Path
    network: nn.Module
    input: Mapping[str, Any]
    classes: tuple[str, ...]
    run: Mapping[str, Any]
    split: RunSplit | None = None

    @classmethod
    def open(cls, folder: Path, policy: ImportPolicy | None = None) -> ExportedModel:
        """Read an export, its network's import path put before ``policy``; ConfigError if it is not one or damaged."""
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
            network = _network(about["model"], shape, len(classes), policy)
            _check_constants(given)
            if given.get("kind", "images") != "images":
                _check_rows(given, channels)
            network.load_state_dict(load_file(folder / "model.safetensors"))
            run = dict(about["run"])
            return cls(folder, network.eval(), given, classes, run, _split(run))
        except _UNREADABLE as error:
            reason = str(error).splitlines()[-1].strip() if str(error) else type(error).__name__
            raise ConfigError(
                f"{folder} is not an exported model that can be read ({reason}): give a folder that `nectar export` "
                "made"
            ) from None

    @property
    def kind(self) -> str:
        """What it takes: images, a table's rows or series."""
        return str(self.input.get("kind", "images"))

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of a table's columns or a series' channels."""
        return tuple(map(str, self.input.get("columns", ())))

    @property
    def cells(self) -> tuple[str, ...]:
        """The names of the cells of a line that holds one row or series."""
        return cell_names(self.columns, self.kind, self.shape[2])

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
        """Return raw images [n, C, H, W] normalised: (raw / scale - mean) / std, float32; rows within their bounds."""
        if self.kind != "images":
            return self._rows(raw)
        mean, std = (torch.tensor(self.input[key], dtype=torch.float64) for key in ("mean", "std"))
        factor, offset = 1 / (self.scale * std), -mean / std
        shift, gain = (part.float()[:, None, None].to(raw.device) for part in (offset, factor))
        return torch.addcmul(shift, raw.float(), gain)

    def _rows(self, raw: Tensor) -> Tensor:
        low, high, mean, std = (
            torch.tensor(self.input[key], dtype=torch.float64, device=raw.device)[:, None, None]
            for key in ("low", "high", "mean", "std")
        )
        values = raw.double()  # raw values have any scale
        if len(low):
            values = values.clamp(low, high)
        return ((values - mean) / std).float()


def _network(
    model: Mapping[str, Any], shape: tuple[int, ...], classes: int, policy: ImportPolicy | None
) -> nn.Module:
    """Build Nectar's own network, or call what the import path names if ``policy`` allows it."""
    name = str(model["name"])
    if not is_import_path(name):
        return build(**model, shape=shape, classes=classes)
    if policy is not None:
        policy("model.name", name)
    return make(load(name), name, shape, classes)


def _split(run: Mapping[str, Any]) -> RunSplit | None:
    if not run.get("split"):
        return None
    try:
        return RunSplit.model_validate(run["split"])
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, ("run", "split", *first["loc"])))
        raise ValueError(f"model.json's {key}: {first['msg']}") from None


def _check_constants(given: Mapping[str, Any]) -> None:
    """Refuse constants by which no image can be normalised: of a standard deviation of 0 each loss would be NaN."""
    for key in ("scale", "mean", "std"):
        for value in [given[key]] if key == "scale" else given[key]:
            if not math.isfinite(value) or (key != "mean" and value <= 0):
                above = "" if key == "mean" else " above 0"
                raise ValueError(
                    f"model.json's {key} holds {value}, where a finite number{above} is needed"
                )


def _check_rows(given: Mapping[str, Any], channels: int) -> None:
    """Refuse a description of rows that lacks a name, or has a bound for some columns alone."""
    low, high = list(map(float, given["low"])), list(map(float, given["high"]))
    bounded = len(low) == len(high) == channels and all(
        a < b for a, b in zip(low, high, strict=True)
    )
    if len(given["columns"]) != channels or not (bounded or not low + high):
        raise ValueError(
            f"model.json names {len(given['columns'])} columns and bounds for {channels}"
        )
