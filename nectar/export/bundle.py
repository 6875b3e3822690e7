"""The exported folder: weights, a graph that needs no Nectar, model.json, a README, and what the sites sent."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file

from common.division import Division
from common.errors import ConfigError
from common.learning.run import Run
from common.models import Classifier
from common.samples.dataset import DatasetInfo
from common.storage.files import write_json, write_text
from common.storage.tensor_file import reason_of
from common.wire.synthetic_images import SyntheticImages
from nectar.export.formats import (
    FORMATS,
    PT2,
    SAFETENSORS,
    Graphs,
    check_weights,
    require_packages,
)
from nectar.export.learned import checkpoint_of, network_of, require_images
from nectar.export.model import MODEL_SCHEMA
from nectar.export.readme import readme
from nectar.export.split import split_settings
from nectar.export.synthetic import require_fit, write_synthetic
from nectar.records.record import RunRecord
from server_app.checkpoint import Checkpoint
from server_app.recorder import hard
from server_app.synthetic_sets import contrast_of


@dataclass(frozen=True)
class Export:
    """What was written where.

    Attributes
    ----------
    about : dict
        The content of its model.json.
    images : int
        How many images that the sites sent are in it.
    apart : dict of str to float
        How far each format's logits are from those of the run's model, as `check` states it.
    lacks : str
        Why there is no graph of torch.export, empty if there is one.
    """

    folder: Path
    about: dict[str, Any]
    images: int
    apart: dict[str, float]
    lacks: str


def export(
    past: RunRecord,
    output: Path | None = None,
    *,
    best: bool = False,
    formats: Sequence[str] = (),
    model: str = "",
) -> Export:
    """Write the newest model of ``past``, or that of the round best on validation, into a folder of its own.

    The folder appears whole, by one rename, once what was written was read again and gave the logits of the run's
    model. ``output`` defaults to ``export/round-005`` in the record; ``formats`` are written beside the weights, and
    pt2 in any case where torch can follow the network. ``model`` names one of several.

    Raises
    ------
    ConfigError
        If the folder is there already, the run learned a language model, the checkpoint's weights do not fit the
        configuration's model, a format cannot be had, or what was written does not load or gives other logits.
    FederationError
        If the run has no such checkpoint, or something of the record that the export holds cannot be read.
    """
    require_packages(formats)
    require_images(past, Division(past.config).run)
    checkpoint = checkpoint_of(past, best=best)
    run = Division(past.config).run.with_model(checkpoint.named(model))
    which = f"-{model}" if model else ""
    name = f"{'best-' if best else ''}round-{checkpoint.server_round:03d}{which}"
    folder = _free(Path(output or past.directory / "export" / name))
    network = network_of(run, checkpoint, model)
    server_round, sets = past.synthetic(best=best)
    kept = past.best_sets if best else past.last_sets
    require_fit(sets, run.info, kept)
    about = about_model(past, run, checkpoint)
    sent = _summary(sets, server_round, run.info)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        weights = {key: value.contiguous() for key, value in checkpoint.model(model).items()}
        save_file(weights, temporary / FORMATS[SAFETENSORS].file)
        write_json(temporary / "model.json", about)
        apart = {SAFETENSORS: check_weights(network, run.info, temporary)}
        graphs, lacks = _write_graphs(network, run.info, formats, temporary)
        apart |= graphs
        about["formats"] = {
            name: {"file": FORMATS[name].file, "input": FORMATS[name].takes} for name in apart
        }
        write_json(temporary / "model.json", about)
        write_text(temporary / "README.md", readme(about, run.config, sent, lacks))
        if sets:
            write_synthetic(sets, run.info, temporary / "synthetic", contrast_of(kept))
        temporary.rename(folder)
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"{folder} cannot be written ({reason_of(error)}): choose another --output"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Export(folder, about, sent["count"] if sent else 0, apart, lacks)


def about_model(past: RunRecord, run: Run, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the content of model.json for ``checkpoint`` but for its ``formats``.

    It is what the model is, what it takes, how good it was and where it comes from.
    """
    config, info, origin = run.config, run.info, past.provenance
    line: Mapping[str, Any] = next(
        (x for x in past.rounds if x["round"] == checkpoint.server_round), {}
    )
    return {
        "schema": MODEL_SCHEMA,
        "model": config.model.architecture(),
        "input": {
            "shape": list(info.shape),
            "mean": list(info.mean),
            "std": list(info.std),
            "scale": info.scale,
            "page": config.images.page,
            "white": config.images.white,
            "pixels": "raw / scale, from 0 to 1",
            "normalised": "(raw / scale - mean) / std",
        },
        "classes": list(info.classes),
        "figures": {  # null where nobody evaluated, or where a figure was not finite
            name: {key: line[name].get(key) for key in ("accuracy", "loss")}
            if line.get(name)
            else None
            for name in ("test", "validation")
        },
        "run": {
            "id": past.id,
            "method": config.method,
            "dataset": config.dataset,
            "seed": config.seed,
            "round": checkpoint.server_round,
            "rounds": config.rounds,
            "outcome": origin.get("outcome", ""),
            "configuration": origin.get("configuration", ""),
            "code": origin.get("code", ""),
            "data": dict(origin.get("data", {})).get("sha256", ""),
            "split": split_settings(config),
        },
    }


def _free(output: Path) -> Path:
    """Return the folder to make as an absolute path; ConfigError if something is there."""
    folder = output.expanduser().absolute()
    if folder.exists() or folder.is_symlink():
        raise ConfigError(
            f"{folder} is there already and is left as it is: remove it, or name another folder with --output"
        )
    return folder


def _write_graphs(
    network: Classifier, info: DatasetInfo, asked: Sequence[str], folder: Path
) -> tuple[dict[str, float], str]:
    """Write pt2 and what is asked for; return how far each is off, and why there is no pt2 if nobody asked for it."""
    graphs, apart, lacks = Graphs(network, info), dict[str, float](), ""
    for name in (name for name in FORMATS if name == PT2 or name in asked):
        try:
            apart[name] = graphs.write(name, folder)
        except ConfigError as error:
            if name in asked:
                raise ConfigError(
                    f"{error}: leave --format {name} out, or rewrite what this names"
                ) from None
            lacks = str(error)
            (folder / FORMATS[name].file).unlink(missing_ok=True)
    return apart, lacks


def _summary(
    sets: Mapping[str, SyntheticImages], server_round: int, info: DatasetInfo
) -> dict[str, Any] | None:
    if not sets:
        return None
    present = {label for sent in sets.values() for label in hard(sent.labels).tolist()}
    return {
        "count": sum(len(sent.labels) for sent in sets.values()),
        "sites": list(sets),
        "round": server_round,
        "missing": [name for label, name in enumerate(info.classes) if label not in present],
    }
