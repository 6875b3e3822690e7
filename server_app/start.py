"""The weights that a run begins with: its own draw, or those of a safetensors file. Never a pickle."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from logging import getLogger
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from common.config.resolved import Config
from common.errors import ConfigError, one_line
from common.learning.run import Run
from common.models import Classifier

logger = getLogger("flwr")

Tensors = dict[str, torch.Tensor]


def starting_weights(run: Run, *, tell: bool = True) -> Tensors:
    """Return the first round's weights, by name: the run's own draw where ``model.start`` names no file.

    Of a file, all is taken but a last layer of another shape, which is for other classes: that keeps the run's draw.

    Raises
    ------
    ConfigError
        If the file cannot be read, or has another name, shape or dtype, or a value that is not finite.
    """
    model = run.build_model()
    own = model.state_dict()
    if not run.config.model.start:
        return own
    found = _read(run.config)
    kept = _kept(model, own, found)
    for name in dict.fromkeys([*own, *found]):
        if name not in kept:
            _compare(run.config, name, own.get(name), found.get(name))
    if tell:
        drawn = f"; {', '.join(kept)}, of another shape there, as this run draws them"
        logger.info("the model starts from %s%s", run.config.model.start, drawn if kept else "")
    return {name: own[name] if name in kept else found[name] for name in own}


def start_checksum(config: Config) -> str:
    """Return the SHA-256 of the file that ``model.start`` names, in hexadecimal; empty where it names none.

    Raises
    ------
    ConfigError
        If it cannot be read.
    """
    if not config.model.start:
        return ""
    try:
        with Path(config.model.start).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(config, error.strerror or str(error)) from None


def _read(config: Config) -> Tensors:
    try:
        return load_file(config.model.start)
    except (SafetensorError, OSError, ValueError) as error:
        raise _unreadable(config, one_line(str(error))[:200]) from None


def _unreadable(config: Config, reason: str) -> ConfigError:
    return ConfigError(
        f"model.start={config.model.start} cannot be read ({reason}): the server needs it there, as "
        "safetensors.torch.save_file writes a state_dict"
    )


def _kept(model: Classifier, own: Tensors, found: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names of the last layer if the file has them all, and one of them in another shape."""
    names = [name for name in own if model.is_of_head(name)]
    there = all(name in found for name in names)
    differs = there and any(found[name].shape != own[name].shape for name in names)
    return names if differs else []


def _compare(
    config: Config, name: str, own: torch.Tensor | None, given: torch.Tensor | None
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
        f"model.start={config.model.start} {reason}: give the weights of model.name={config.model.name} with these "
        "settings, under its names"
    )


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
