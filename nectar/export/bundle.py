"""The exported folder: weights, description, the code that loads them, what the sites sent, and a README."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from common.data import DatasetInfo, decode
from common.errors import ConfigError, FederationError
from common.files import write_json, write_text
from common.models import (
    build,
    building,
    classifier,
    cnn,
    convnet,
    initial,
    leafcnn,
    lstm,
    mlp,
    registry,
)
from common.run import Run
from common.wire import SyntheticImages
from nectar.export import pictures, plain
from nectar.export.about import about_model
from nectar.export.readme import nature_of_images, readme
from nectar.export.standalone import join
from nectar.export.synthetic import write_synthetic
from nectar.past_run import PastRun
from server_app.checkpoint import Checkpoint
from server_app.screen import hard
from server_app.synthetic_sets import contrast_of

NETWORKS = (classifier, cnn, convnet, leafcnn, lstm, mlp, initial, registry, building, plain)
"""What model.py is made of."""

_LICENCE = "Written by `nectar export` from Nectar's own source, Apache-2.0."


@dataclass(frozen=True)
class Export:
    """What was written where."""

    folder: Path
    about: dict[str, Any]
    images: int
    nature: str


def export(past: PastRun, output: Path | None = None, *, best: bool = False) -> Export:
    """Write the newest model of ``past``, or that of the round best on validation, into a folder of its own.

    The folder appears whole, by one rename. ``output`` defaults to ``export/round-005`` in the record.

    Raises
    ------
    ConfigError
        If the folder is there already, the run learned a language model, or the checkpoint's weights do not fit the
        configuration's model.
    FederationError
        If the run has no such checkpoint, or it cannot be read.
    """
    run = Run(past.config)
    _require_images(past, run.info)
    checkpoint = _checkpoint(past, best)
    weights = _fitting(run, checkpoint)
    name = f"{'best-' if best else ''}round-{checkpoint.server_round:03d}"
    folder = Path(output or past.directory / "export" / name).expanduser().absolute()
    if folder.exists() or folder.is_symlink():
        raise ConfigError(
            f"{folder} is there already and is left as it is: remove it, or name another folder with --output"
        )
    server_round, sets = past.synthetic(best=best)
    kept = past.record.best_sets if best else past.record.last_sets
    contrast = contrast_of(kept) if sets else "pixels"
    about = about_model(past, run, checkpoint)
    sent = _summary(sets, server_round, run.info)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        save_file(weights, temporary / "model.safetensors")
        write_json(temporary / "model.json", about)
        write_text(temporary / "model.py", join(NETWORKS, _title("Rebuild and load the model.")))
        reader = join((decode, pictures), _title("Read a picture as the training images were."))
        write_text(temporary / "pictures.py", reader)
        write_text(temporary / "README.md", readme(about, run.config, sent))
        if sets:
            write_synthetic(sets, run.info, temporary / "synthetic", contrast)
        temporary.rename(folder)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written ({error.strerror or error}): choose another --output"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    count = sent["count"] if sent else 0
    return Export(folder, about, count, nature_of_images(run.config) if sent else "")


def _require_images(past: PastRun, info: DatasetInfo) -> None:
    if not info.has_images:
        raise ConfigError(
            f"{past.directory} learned a language model of {info.name}, which cannot be exported: an exported folder "
            f"reads pictures and names their classes; its weights are in {past.record.last}, which safetensors reads"
        )


def _title(first: str) -> str:
    return f"{first}\n\n{_LICENCE}\n"


def _checkpoint(past: PastRun, best: bool) -> Checkpoint:
    record = past.record
    if best and record.last.is_file() and not record.best.is_file():
        raise ConfigError(
            f"{past.directory} has no best round, because nothing was held back for validation: leave --best out"
        )
    if not record.last.is_file():
        raise FederationError(
            f"{past.directory} has no model to export: the run has not finished a round; "
            f"`nectar simulate resume={past.directory}` continues it"
        )
    return past.checkpoint(best=best)


def _fitting(run: Run, checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """Return the checkpoint's weights, once the model that the configuration describes has taken them."""
    weights = {name: value.contiguous() for name, value in checkpoint.weights.items()}
    settings, info = run.config.model.model_dump(), run.info
    try:
        build(**settings, shape=info.shape, classes=len(info.classes)).load_state_dict(weights)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[-1].strip()
        raise ConfigError(
            f"the checkpoint does not fit the model that the record's settings describe ({reason}): export it with the "
            "release that ran it"
        ) from None
    return weights


def _summary(
    sets: Mapping[str, SyntheticImages], server_round: int, info: DatasetInfo
) -> dict[str, Any] | None:
    if not sets:
        return None
    present = {label for sent in sets.values() for label in hard(sent.labels).tolist()}
    return {
        "count": sum(len(sent.labels) for sent in sets.values()),
        "sites": len(sets),
        "round": server_round,
        "missing": [name for label, name in enumerate(info.classes) if label not in present],
    }
