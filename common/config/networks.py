"""Settings of networks and of the weights they begin with that cannot hold together."""

from __future__ import annotations

import re
from pathlib import PurePath

from common.errors import ConfigError
from common.models.registry import KINDS, MODELS, names, takes
from common.settings.networks import FeaturesSettings, ModelSettings
from common.settings.sections import DataSettings

START_KEY = "model.start"

#: methods whose sites and server move nothing but what the local steps moved
_HEAD_ALONE = (
    "fedavg",
    "fedprox",
    "fednova",
    "feddyn",
    "moon",
    "lowrank",
    "masking",
    "topk",
    "local",
)


def check_head(model: ModelSettings, method: str) -> None:
    """Refuse to train the last layer alone where a method trains others; ConfigError naming methods that do not."""
    if model.train == "head" and method not in _HEAD_ALONE:
        raise ConfigError(
            f"model.train=head cannot hold under method={method}, which does not leave the other layers as they are: "
            f"choose one of {', '.join(_HEAD_ALONE)}, or set model.train=all."
        )


def check_model(model: ModelSettings) -> None:
    """Refuse weights to start from that are no file by absolute path, and none of torchvision's.

    Raises
    ------
    ConfigError
        Another kind of file, a relative path, or a checksum of no file.
    """
    start = model.start
    if start and not ((_is_file(start) and PurePath(start).is_absolute()) or _is_published(start)):
        raise ConfigError(
            f"{START_KEY}={start} must be torchvision:NAME, or an absolute path to a .safetensors, .pth or .pt file, "
            "as safetensors.torch.save_file or torch.save writes a state_dict."
        )
    if model.sha256 and not start:
        raise ConfigError(
            "model.sha256 names the contents of a file, but model.start is not set: set it, or leave model.sha256 out."
        )


def check_features(features: FeaturesSettings, dataset: str, data: DataSettings) -> None:
    """Refuse features of no network, of one that takes no images, or whose weights machines could not agree on.

    Raises
    ------
    ConfigError
        A network of something else, weights that are not named or not told apart, or data that are no images.
    """
    name, start = features.name, features.start
    if not name:
        for key, value in features.model_dump().items():
            if value != FeaturesSettings.model_fields[key].default:
                raise ConfigError(
                    f"features.{key}={value} is of a network, and features.name is not set: set it, or leave it out."
                )
        return
    if name in MODELS and not takes(name, "images"):
        raise ConfigError(f"features.name={name} takes no images: choose one of {names('images')}.")
    if data.kind != "images":
        raise ConfigError(
            f"features.name={name} is for images, and {data.file or dataset} is {KINDS[data.kind]}: leave it out."
        )
    if not (_is_file(start) or _is_published(start)):
        raise ConfigError(
            f"features.start={start} must be torchvision:NAME, or a .safetensors, .pth or .pt file: an absolute path, "
            "or a name below data-dir/weights; every machine reads it."
        )
    if not features.sha256 and not _is_published(start):
        raise ConfigError(
            f"features.start={start} needs features.sha256, the file's SHA-256, so that every machine reads the same: "
            "sha256sum tells it."
        )


def _is_file(start: str) -> bool:
    return start.endswith((".safetensors", ".pth", ".pt"))


def _is_published(start: str) -> bool:
    return re.fullmatch(r"torchvision:\w+", start) is not None
