"""An exported model, read from model.json and model.safetensors; no code from its folder is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import lt
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator
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

_UNREADABLE = (
    *(OSError, SafetensorError, ValueError, LookupError, TypeError, AttributeError, RuntimeError),
)

_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Positive = Annotated[float, Field(allow_inf_nan=False, gt=0)]


class ModelInput(BaseModel):
    """What a model takes: shape, normalisation, and of rows the columns' names and bounds, if there are any."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["images", "table", "series"] = "images"
    shape: tuple[PositiveInt, PositiveInt, PositiveInt]
    scale: _Positive
    mean: tuple[_Finite, ...]
    std: tuple[_Positive, ...]
    columns: tuple[str, ...] = ()
    low: tuple[_Finite, ...] = ()
    high: tuple[_Finite, ...] = ()
    page: Any = None
    white: Any = None
    black: Any = None

    @model_validator(mode="after")
    def _describes_every_column(self) -> Self:
        if self.kind != "images":
            ordered = len(self.low) == len(self.high) and all(map(lt, self.low, self.high))
            bounds = {len(self.low), self.shape[0]} in ({0, self.shape[0]}, {self.shape[0]})
            if len(self.columns) != self.shape[0] or not (ordered and bounds):
                raise ValueError(
                    f"it names {len(self.columns)} columns, and bounds of {len(self.low)}, where there are "
                    f"{self.shape[0]}"
                )
        return self

    @property
    def cells(self) -> tuple[str, ...]:
        """The names of the cells of a line that holds one row or series."""
        return cell_names(self.columns, self.kind, self.shape[2])

    @property
    def form(self) -> dict[str, Any]:
        """How pictures were read, as far as model.json says so: settings of `ImagesSettings`."""
        return {
            key: value
            for key in ("page", "white", "black")
            if (value := getattr(self, key)) is not None
        }


class RunSplit(BaseModel):
    """How a run divided its own pictures or rows: with its seed and classes, what it takes to divide them again.

    It names no picture. ``folder`` is true for one folder of images, which can be scored; ``sites`` and
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


class RunOrigin(BaseModel):
    """The run that a model comes from: its seed, the checksum of its data, how it divided its own ones."""

    seed: int = 0
    data: str = ""
    split: RunSplit | None = None


class _About(BaseModel):
    """The parts of model.json that are read."""

    version: Literal[1] = Field(alias="schema")
    model: dict[str, Any]
    input: ModelInput
    classes: tuple[str, ...]
    run: RunOrigin


class Normalise(nn.Module):
    """Raw values [n, C, H, W] as a network takes them, float32: (raw / scale - mean) / std, ``ends`` as bounds first.

    ``exact`` computes in float64: values of rows have any scale, and what is subtracted from them may be far larger
    than what is left.
    """

    gain: Tensor
    shift: Tensor
    low: Tensor
    high: Tensor

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        scale: float,
        ends: Sequence[Sequence[float]] = (),
        *,
        exact: bool,
    ) -> None:
        super().__init__()
        self.dtype = torch.float64 if exact else torch.float32
        means, stds = (torch.tensor(x, dtype=torch.float64) for x in (mean, std))
        constants = {"gain": 1 / (scale * stds), "shift": -means / stds}
        for name, values in zip(("low", "high"), ends, strict=False):
            constants[name] = torch.tensor(values, dtype=torch.float64)
        for name, value in constants.items():
            self.register_buffer(name, value.to(self.dtype)[:, None, None])
        self.bounded = bool(ends)

    def forward(self, raw: Tensor) -> Tensor:
        """Return what the network takes."""
        values = raw.to(self.dtype)
        if self.bounded:
            values = torch.minimum(torch.maximum(values, self.low), self.high)
        return torch.addcmul(self.shift, values, self.gain).float()


@dataclass(frozen=True)
class ExportedModel:
    """The network on the CPU in evaluation mode, and what model.json says of it; ``classes`` as its logits."""

    network: nn.Module
    input: ModelInput
    classes: tuple[str, ...]
    run: RunOrigin

    @classmethod
    def open(cls, folder: Path, policy: ImportPolicy | None = None) -> ExportedModel:
        """Read an export, its network's import path put before ``policy``; ConfigError if it is not one or damaged."""
        try:
            about = _About.model_validate_json((folder / "model.json").read_bytes())
            network = _network(about.model, about.input.shape, len(about.classes), policy)
            network.load_state_dict(load_file(folder / "model.safetensors"))
            return cls(network.eval(), about.input, about.classes, about.run)
        except _UNREADABLE as error:
            raise ConfigError(
                f"{folder} is not an exported model that can be read ({_reason(error)}): give a folder that "
                "`nectar export` made"
            ) from None

    @property
    def split(self) -> RunSplit | None:
        """How the run divided its own data."""
        return self.run.split

    @cached_property
    def _normalise(self) -> Normalise:
        given = self.input
        if given.kind == "images":
            return Normalise(given.mean, given.std, given.scale, exact=False)
        ends = (given.low, given.high) if given.low else ()
        return Normalise(given.mean, given.std, 1.0, ends, exact=True)

    def inputs(self, raw: Tensor) -> Tensor:
        """Return raw images [n, C, H, W] normalised: (raw / scale - mean) / std, float32; rows within their bounds."""
        values: Tensor = self._normalise.to(raw.device)(raw)
        return values


def _reason(error: Exception) -> str:
    """Return in a line what is wrong with an export."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        held = f" holds {first['input']!r:.80}" if isinstance(first["input"], float | int) else ""
        message = first["msg"].removeprefix("Value error, ")
        return f"model.json's {place}{held}: {message}" if place else f"model.json: {message}"
    return str(error).splitlines()[-1].strip() if str(error) else type(error).__name__


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
