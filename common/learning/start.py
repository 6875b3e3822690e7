"""The weights that a run begins with: its own draw, or those of a file, of which nothing is ever run.

A file of ``torch.save``'s is read by torch's restricted reader (``weights_only``): it makes tensors and plain values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from common.config.resolved import Config
from common.errors import ConfigError, short_reason
from common.learning.run import Run
from common.models import Classifier
from common.storage.files import sha256_of
from common.storage.limits import ANYWHERE, Bounds

logger = getLogger("flwr")

Tensors = dict[str, torch.Tensor]

#: how many batches a batch norm has seen: nothing reads it but a norm without momentum
_COUNT = ".num_batches_tracked"


def starting_weights(run: Run, *, announce: bool = True) -> Tensors:
    """Return the first round's weights, by name: the run's own draw where ``model.start`` names no file.

    Of a file, all is taken but a last layer of another shape, which is for other classes: that keeps the run's draw. A
    last layer of another name is the model's, where it is all that the names differ in; so is torchvision's.
    """
    model = run.build_model()
    own = model.state_dict()
    if not run.config.model.start:
        return own
    initial = loaded(model, asked_of(run.config), announce=announce)
    for name, start in initial.items():
        if name not in run.spec.names and not torch.equal(start, own[name]):
            raise ConfigError(
                f"model.start={run.config.model.start} is read by the server alone, and '{name}' stays at the sites "
                f"({run.config.model.what_stays}), where it would begin as drawn: share it, or leave model.start out."
            )
    return initial


def asked_of(config: Config) -> WeightsFile:
    """Return the file that ``model.start`` names, as the server reads it."""
    model = config.model
    return WeightsFile("model", model.name, model.start, model.sha256, model.norm, config.data_dir)


def loaded(model: Classifier, asked: WeightsFile, *, announce: bool = True) -> Tensors:
    """Return ``model``'s state read from a file; all but a last layer for other classes is taken."""
    own = model.state_dict()
    found = _under_our_names(model, own, _read(asked))
    kept = _kept(model, own, found)
    for name in dict.fromkeys([*own, *found]):
        if name not in kept:
            _compare(asked, name, own.get(name), found.get(name))
    if announce:
        drawn = f"; {', '.join(kept)}, of another shape there, as this run draws them"
        logger.info("the model starts from %s%s", asked.start, drawn if kept else "")
    return {name: own[name] if name in kept else found[name] for name in own}


def start_checksum(config: Config) -> str:
    """Return the SHA-256 of ``model.start``'s file, in hexadecimal, if it names one; ConfigError if unreadable."""
    return checksum(asked_of(config)) if config.model.start else ""


def checksum(asked: WeightsFile) -> str:
    """Return the SHA-256 of the requested file, in hexadecimal; ConfigError if unreadable."""
    return _checksum(asked, _file(asked))


def _file(asked: WeightsFile) -> Path:
    if asked.start.startswith(TORCHVISION):
        return fetched(asked)
    return asked.bounds.inside(asked.data_dir / "weights" / asked.start, f"{asked.section}.start")


def _checksum(asked: WeightsFile, path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise _unreadable(asked, error.strerror or str(error)) from None


def _read(asked: WeightsFile) -> Tensors:
    path, expected = _file(asked), asked.sha256
    if expected and (found := _checksum(asked, path)) != expected:
        raise ConfigError(
            f"{asked} has SHA-256 {found}, and {asked.section}.sha256={expected} asks for another file"
        )
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return _state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # a file of another kind fails in any way
        raise _unreadable(asked, short_reason(error)) from None


def _state_dict(read: object) -> Tensors:
    """Return the content of a ``torch.save`` file; ValueError if it is not a state_dict."""
    if not isinstance(read, Mapping):
        raise ValueError(f"it holds a {type(read).__name__} and no state_dict")
    other = next((k for k, v in read.items() if not isinstance(v, torch.Tensor)), None)
    if other is not None:
        raise ValueError(f"it holds {other!r}, which is not a tensor, and so is not a state_dict")
    return {str(name): value.detach() for name, value in read.items()}


def _unreadable(asked: WeightsFile, reason: str) -> ConfigError:
    needs = "the server needs" if asked.section == "model" else "each machine needs"
    return ConfigError(
        f"{asked} cannot be read ({reason}): {needs} it there, as "
        "safetensors.torch.save_file or torch.save writes a state_dict"
    )


def _under_our_names(
    model: Classifier, own: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]
) -> Tensors:
    """Return the file's tensors with the model's name of the last layer, and with batch counts that old files lack."""
    missing = [name for name in own if model.is_of_head(name) and name not in found]
    others = [name for name in found if name not in own]
    new = {name.rpartition(".")[2]: name for name in missing}
    layers = {name.rpartition(".")[0] for name in others}
    if len(layers) == 1 and new.keys() == {name.rpartition(".")[2] for name in others}:
        found = {new[k.rpartition(".")[2]] if k in others else k: v for k, v in found.items()}
    uncounted = {name: t for name, t in own.items() if name.endswith(_COUNT) and name not in found}
    return {**found, **uncounted}


def _kept(model: Classifier, own: Tensors, found: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names of the last layer if the file has them all, and one of them in another shape."""
    names = [name for name in own if model.is_of_head(name)]
    there = all(name in found for name in names)
    differs = there and any(found[name].shape != own[name].shape for name in names)
    return names if differs else []


def _compare(
    asked: WeightsFile, name: str, own: torch.Tensor | None, given: torch.Tensor | None
) -> None:
    """Refuse what the file has otherwise than the model, or only one of them has."""
    if own is None or given is None:
        reason = f"has no {name}" if given is None else f"has {name}, which the model has not"
    elif (own.shape, own.dtype) != (given.shape, given.dtype):
        reason = f"has {name} as {_described(given)}, and the model's is {_described(own)}"
    elif given.is_floating_point() and not bool(given.isfinite().all()):
        reason = f"has values in {name} that are not finite"
    else:
        return
    raise ConfigError(
        f"{asked} {reason}: give the weights of {asked.section}.name={asked.name} with these "
        "settings, under its names"
    )


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


# ---- published weights ---------------------------------------------------------------------------
# Torchvision's published weights, by name: fetched once, checked by the hash in the file's name, and never run.

#: what such a ``start`` begins with that names torchvision's weights, and a model that is torchvision's own
TORCHVISION, _THEIRS = "torchvision:", "torchvision.models:"

#: Nectar's networks that are torchvision's except for the name of the last layer, and the norm that makes them so
_ALIKE = {"resnet18": "batch", "resnet34": "batch", "vgg11": ""}

#: the beginning of a file's SHA-256, as its name ends
_HASH = re.compile(r"-([0-9a-f]{8})\.pth$")


@dataclass(frozen=True)
class WeightsFile:
    """A file of weights as the settings of a section name it."""

    section: str
    name: str
    start: str
    sha256: str
    norm: str
    data_dir: Path
    bounds: Bounds = ANYWHERE

    def __str__(self) -> str:
        return f"{self.section}.start={self.start}"


def fetched(asked: WeightsFile) -> Path:
    """Return the file of the weights ``torchvision:NAME``, downloaded if it is missing.

    It is below the data directory, in ``weights``, under torchvision's name of it.
    """
    url: str = published(asked).url
    path = asked.data_dir / "weights" / url.rpartition("/")[2]
    stated = _HASH.search(path.name)
    if stated is None:
        raise _refused(asked, f"its file {path.name} has no hash in its name to check it by")
    asked.bounds.inside(path, f"{asked.section}.start")
    if not path.is_file():
        asked.bounds.may_download(f"{asked}")
        logger.info("%s is missing, downloading it from %s", path, url)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # under a temporary name until it is complete and its hash is right
            torch.hub.download_url_to_file(url, str(path), hash_prefix=stated[1], progress=False)
        except Exception as error:  # a network fails in any way it likes; the way out is the same
            reason = f"the download failed ({short_reason(error)}): put {url} there as {path}"
            raise _refused(asked, reason) from None
    found = _checksum(asked, path)
    if not found.startswith(stated[1]):
        raise _refused(
            asked,
            f"{path} has SHA-256 {found}, and its name says {stated[1]}: delete it and start again",
        )
    return path


def published(asked: WeightsFile) -> Any:
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


def _architecture(asked: WeightsFile) -> str:
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


def _refused(asked: WeightsFile, reason: str) -> ConfigError:
    return ConfigError(f"{asked} cannot be had: {reason}")
