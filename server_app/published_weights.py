"""Torchvision's published weights, by name: fetched once, checked by the hash in the file's name, and never run."""

from __future__ import annotations

import hashlib
import re
from logging import getLogger
from pathlib import Path
from typing import Any

import torch

from common.config.resolved import Config
from common.errors import ConfigError, one_line

logger = getLogger("flwr")

#: what ``model.start`` begins with that names torchvision's weights, and a model that is torchvision's own
TORCHVISION, _THEIRS = "torchvision:", "torchvision.models:"

#: Nectar's networks that are torchvision's but for the name of the last layer, and the norm that makes them so
_ALIKE = {"resnet18": "batch", "resnet34": "batch", "vgg11": ""}

#: the beginning of a file's SHA-256, as its name ends
_HASH = re.compile(r"-([0-9a-f]{8})\.pth$")


def fetched(config: Config) -> Path:
    """Return the file of the weights that ``model.start`` names as ``torchvision:NAME``, fetched if it is not there.

    It lies below the data directory, in ``weights``, under torchvision's name of it.

    Raises
    ------
    ConfigError
        If torchvision has no such weights of the run's model, the file cannot be fetched, or is another than its name
        says.
    """
    url = _url(config)
    path = config.data_dir / "weights" / url.rpartition("/")[2]
    told = _HASH.search(path.name)
    if told is None:
        raise _refused(config, f"its file {path.name} has no hash in its name to check it by")
    if not path.is_file():
        _fetch(config, url, path, told[1])
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if not found.startswith(told[1]):
        raise _refused(
            config,
            f"{path} has SHA-256 {found}, and its name says {told[1]}: delete it and begin again",
        )
    return path


def _url(config: Config) -> str:
    """Return where torchvision says that the weights are."""
    name, architecture = config.model.start.removeprefix(TORCHVISION), _architecture(config)
    import torchvision.models  # seconds, which only such a start should cost

    try:
        known: Any = torchvision.models.get_model_weights(architecture)
    except ValueError:
        raise _refused(config, f"torchvision has no weights of a network {architecture}") from None
    if name not in known.__members__:
        there = ", ".join(known.__members__)
        raise _refused(config, f"torchvision's weights of {architecture} are {there}")
    url: str = known[name].url
    return url


def _architecture(config: Config) -> str:
    """Return torchvision's name of the run's model."""
    model = config.model
    if model.name.startswith(_THEIRS):
        return model.name.removeprefix(_THEIRS)
    if model.name not in _ALIKE:
        raise _refused(
            config,
            f"model.name={model.name} is not a network of torchvision's: choose one of {', '.join(_ALIKE)}, or "
            f"{_THEIRS}NAME",
        )
    if _ALIKE[model.name] not in ("", model.norm):
        raise _refused(
            config,
            f"torchvision's {model.name} has batch norm, and this one model.norm={model.norm}: set "
            f"model.norm={_ALIKE[model.name]}",
        )
    return model.name


def _fetch(config: Config, url: str, path: Path, prefix: str) -> None:
    logger.info("%s is missing, downloading it from %s", path, url)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # under a temporary name until it is whole and its hash is right
        torch.hub.download_url_to_file(url, str(path), hash_prefix=prefix, progress=False)
    except Exception as error:  # a network fails in any way it likes; the way out is the same
        reason = one_line(str(error))[:200] or type(error).__name__
        raise _refused(
            config, f"the download failed ({reason}): put {url} there as {path}"
        ) from None


def _refused(config: Config, reason: str) -> ConfigError:
    return ConfigError(f"model.start={config.model.start} cannot be had: {reason}")
