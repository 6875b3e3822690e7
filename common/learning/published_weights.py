"""Torchvision's published weights, by name: fetched once, checked by the hash in the file's name, and never run."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import Any

import torch

from common.data.bounds import ANYWHERE, Bounds
from common.errors import ConfigError, one_line

logger = getLogger("flwr")

#: what such a ``start`` begins with that names torchvision's weights, and a model that is torchvision's own
TORCHVISION, _THEIRS = "torchvision:", "torchvision.models:"

#: Nectar's networks that are torchvision's but for the name of the last layer, and the norm that makes them so
_ALIKE = {"resnet18": "batch", "resnet34": "batch", "vgg11": ""}

#: the beginning of a file's SHA-256, as its name ends
_HASH = re.compile(r"-([0-9a-f]{8})\.pth$")


@dataclass(frozen=True)
class Asked:
    """A file of weights as the settings of a section name it.

    Parameters
    ----------
    section : str
        ``model`` or ``features``, whose ``name``, ``start``, ``sha256`` and ``norm`` these are.
    data_dir : Path
        Below which fetched files lie.
    bounds : Bounds
        What may be read and fetched on this machine.
    """

    section: str
    name: str
    start: str
    sha256: str
    norm: str
    data_dir: Path
    bounds: Bounds = ANYWHERE

    def __str__(self) -> str:
        return f"{self.section}.start={self.start}"


def fetched(asked: Asked) -> Path:
    """Return the file of the weights that are asked for as ``torchvision:NAME``, fetched if it is not there.

    It lies below the data directory, in ``weights``, under torchvision's name of it.

    Raises
    ------
    ConfigError
        If torchvision has no such weights of the network, the file cannot be fetched, or is another than its name says.
    DataError
        If it is missing, and nothing may be fetched; or it lies out of bounds.
    """
    url: str = published(asked).url
    path = asked.data_dir / "weights" / url.rpartition("/")[2]
    told = _HASH.search(path.name)
    if told is None:
        raise _refused(asked, f"its file {path.name} has no hash in its name to check it by")
    asked.bounds.inside(path, f"{asked.section}.start")
    if not path.is_file():
        asked.bounds.may_download(f"{asked}")
        _fetch(asked, url, path, told[1])
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if not found.startswith(told[1]):
        raise _refused(
            asked,
            f"{path} has SHA-256 {found}, and its name says {told[1]}: delete it and begin again",
        )
    return path


def published(asked: Asked) -> Any:
    """Return torchvision's own entry of the weights: their address, and how they take images."""
    name, architecture = asked.start.removeprefix(TORCHVISION), _architecture(asked)
    import torchvision.models  # seconds, which only such a start should cost

    try:
        known: Any = torchvision.models.get_model_weights(architecture)
    except ValueError:
        raise _refused(asked, f"torchvision has no weights of a network {architecture}") from None
    if name not in known.__members__:
        there = ", ".join(known.__members__)
        raise _refused(asked, f"torchvision's weights of {architecture} are {there}")
    return known[name]


def _architecture(asked: Asked) -> str:
    """Return torchvision's name of the network."""
    if asked.name.startswith(_THEIRS):
        return asked.name.removeprefix(_THEIRS)
    if asked.name not in _ALIKE:
        raise _refused(
            asked,
            f"{asked.section}.name={asked.name} is not a network of torchvision's: choose one of "
            f"{', '.join(_ALIKE)}, or {_THEIRS}NAME",
        )
    if _ALIKE[asked.name] not in ("", asked.norm):
        raise _refused(
            asked,
            f"torchvision's {asked.name} has batch norm, and this one {asked.section}.norm={asked.norm}: set "
            f"{asked.section}.norm={_ALIKE[asked.name]}",
        )
    return asked.name


def _fetch(asked: Asked, url: str, path: Path, prefix: str) -> None:
    logger.info("%s is missing, downloading it from %s", path, url)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # under a temporary name until it is whole and its hash is right
        torch.hub.download_url_to_file(url, str(path), hash_prefix=prefix, progress=False)
    except Exception as error:  # a network fails in any way it likes; the way out is the same
        reason = one_line(str(error))[:200] or type(error).__name__
        raise _refused(
            asked, f"the download failed ({reason}): put {url} there as {path}"
        ) from None


def _refused(asked: Asked, reason: str) -> ConfigError:
    return ConfigError(f"{asked} cannot be had: {reason}")
