"""The exported folder: weights, a graph that needs no Nectar, model.json, a README, and what the sites sent."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file

from common.config.loading import load
from common.config.user_parts import ImportPolicy
from common.data.user.rows import column_names
from common.division import Division
from common.errors import ConfigError, FederationError
from common.learning.run import Run
from common.models import Classifier
from common.sites import site_slug
from common.storage import tensor_file
from common.storage.files import write_json, write_text
from common.storage.tensor_file import TensorFileError, unreadable_reason
from nectar.export.formats import (
    FORMATS,
    SAFETENSORS,
    check_weights,
    require_packages,
    write_graphs,
)
from nectar.export.model import MODEL_SCHEMA, RunSplit
from nectar.export.readme import readme, sent_images
from nectar.export.synthetic import require_fit, write_synthetic
from nectar.records.outputs import output_folder
from nectar.records.record import RunRecord
from nectar.records.synthetic_sets import contrast_of
from server_app.checkpoint import Checkpoint


@dataclass(frozen=True)
class Export:
    """What was written where.

    Attributes
    ----------
    about : dict
        The content of its model.json.
    images : int
        How many images that the sites sent are in it.
    differences : dict of str to float
        By format, the largest difference of its logits from those of the run's model, as `check` returns it.
    no_pt2 : str
        Why there is no graph of torch.export, empty if there is one.
    """

    folder: Path
    about: dict[str, Any]
    images: int
    differences: dict[str, float]
    no_pt2: str


def export(
    past: RunRecord,
    output: Path | None = None,
    *,
    best: bool = False,
    formats: Sequence[str] = (),
    model: str = "",
) -> Export:
    """Write the newest model of ``past``, or that of the round best on validation, into a new folder.

    The folder appears atomically, once its files were read back and gave the logits of the run's model. ``output``
    defaults to ``export/round-005`` in the record; ``formats`` are written in addition to the weights, and pt2 in any
    case where torch can follow the network. ``model`` names one of several.

    Raises
    ------
    ConfigError
        If the folder is there already, the run learned a language model, the checkpoint's weights do not fit the
        configuration's model, a format cannot be had, or what was written does not load or gives other logits.
    FederationError
        If the run has no such checkpoint, or something of the record that the export holds cannot be read.
    """
    require_packages(formats)
    require_values(Division(past.config).run, past.directory, past.last)
    checkpoint = checkpoint_of(past, best=best)
    run = Division(past.config).run.with_model(checkpoint.named(model))
    which = f"-{model}" if model else ""
    name = f"{'best-' if best else ''}round-{checkpoint.server_round:03d}{which}"
    folder = output_folder(str(output or past.directory / "export" / name), fresh=True)
    network = network_of(run, checkpoint, model)
    server_round, sets = past.synthetic(best=best)
    kept = past.best_sets if best else past.last_sets
    require_fit(sets, run.info, kept)
    sent = sent_images(sets, server_round, run.info, past.config)
    about = about_model(past, run, checkpoint)
    contrast = contrast_of(kept) if sets else "pixels"
    more = lambda to: write_synthetic(sets, run.info, to, contrast) if sets else None  # noqa: E731
    return _written(folder, run, network, about, formats, sent, more)


def export_of_site(
    kept: Path,
    output: Path | None = None,
    *,
    formats: Sequence[str] = (),
    policy: ImportPolicy | None = None,
    data: str = "",
) -> Export:
    """Write the model of a site's own that it judged last, ``kept`` at the site or in a simulation's record.

    ``data`` is the checksum of the set that the simulation divided.

    Raises
    ------
    ConfigError
        As `export` does; or if the file is damaged.
    """
    require_packages(formats)
    try:
        weights, found = tensor_file.load(kept)
        config = load(found["run-config"], policy=policy)
        server_round, site, figures = int(found["round"]), str(found["site"]), found["figures"]
    except (TensorFileError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{kept} is no model that a site kept, or damaged ({error})") from None
    run = Division(config).run
    require_values(run, kept.parent, kept)
    name = f"site-{site_slug(site)}-round-{server_round:03d}"
    folder = output_folder(str(output or kept.with_name(name)), fresh=True)
    checkpoint = Checkpoint(server_round, weights, {})
    origin = {"id": "", "site": site, "round": server_round, "outcome": "completed", "data": data}
    about = _about(run, {"test": None, "validation": None, "site": figures}, origin)
    return _written(folder, run, network_of(run, checkpoint), about, formats)


def _written(
    folder: Path,
    run: Run,
    network: Classifier,
    about: dict[str, Any],
    formats: Sequence[str],
    sent: dict[str, Any] | None = None,
    more: Callable[[Path], None] | None = None,
) -> Export:
    """Write the folder, and what ``more`` writes into its folder synthetic."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        weights = {key: value.contiguous() for key, value in network.state_dict().items()}
        save_file(weights, temporary / FORMATS[SAFETENSORS].file)
        write_json(temporary / "model.json", about)
        differences = {SAFETENSORS: check_weights(network, run.info, temporary)}
        graphs, no_pt2 = write_graphs(network, run.info, formats, temporary)
        differences |= graphs
        about["formats"] = {
            name: {"file": FORMATS[name].file, "input": FORMATS[name].takes} for name in differences
        }
        write_json(temporary / "model.json", about)
        write_text(temporary / "README.md", readme(about, sent, no_pt2))
        if more is not None:
            more(temporary / "synthetic")
        temporary.rename(folder)
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"{folder} cannot be written ({unreadable_reason(error)}): choose another --output"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Export(folder, about, sent["count"] if sent else 0, differences, no_pt2)


def about_model(past: RunRecord, run: Run, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the content of model.json for ``checkpoint`` without its ``formats``.

    It is what the model is, what it takes, how good it was and where it comes from.
    """
    origin = past.provenance
    line: Mapping[str, Any] = next(
        (x for x in past.rounds if x["round"] == checkpoint.server_round), {}
    )
    figures = {  # null without an evaluation, or where a figure was not finite
        name: {key: line[name].get(key) for key in ("accuracy", "loss")} if line.get(name) else None
        for name in ("test", "validation")
    }
    state = {name: origin.get(name, "") for name in ("outcome", "configuration", "code")}
    data = dict(origin.get("data", {})).get("sha256", "")
    return _about(
        run, figures, {"id": past.id, "round": checkpoint.server_round, **state, "data": data}
    )


def _about(run: Run, figures: dict[str, Any], origin: Mapping[str, Any]) -> dict[str, Any]:
    config, info = run.config, run.info
    if info.has_images:
        own = {key: getattr(config.images, key) for key in ("page", "white", "black")}
        own["pixels"] = "raw / scale, from 0 to 1"
    else:  # raw values are brought to the bounds first, if there are any
        own = {"columns": list(column_names(info)), "low": list(info.low), "high": list(info.high)}
    return {
        "schema": MODEL_SCHEMA,
        "model": config.model.architecture(),
        "input": {
            "kind": info.kind,
            "shape": list(info.shape),
            "mean": list(info.mean),
            "std": list(info.std),
            "scale": info.scale,
            **own,
            "normalised": "(raw / scale - mean) / std",
        },
        "classes": list(info.classes),
        "figures": figures,
        "run": {
            "method": config.method,
            "dataset": config.dataset,
            "seed": config.seed,
            "rounds": config.rounds,
            **origin,
            "split": RunSplit.of(config),
        },
    }


# ---- learned -------------------------------------------------------------------------------------
# What a run learned: its newest or best checkpoint, and the network with those weights.


def require_values(run: Run, folder: Path, weights: Path) -> None:
    """Refuse a run whose model takes neither pictures nor rows of a user: ConfigError."""
    embeddings = run.config.features.name
    if not run.info.has_values or embeddings:
        what = f"model of what {embeddings} makes" if embeddings else "language model"
        raise ConfigError(
            f"{folder} learned a {what} of {run.info.name}, which cannot be exported: an exported folder takes "
            f"pictures or rows and names their classes; its weights are in {weights}, which safetensors reads"
        )


def checkpoint_of(past: RunRecord, *, best: bool) -> Checkpoint:
    """Return the newest checkpoint, or that of the round best on validation.

    Raises
    ------
    ConfigError
        If nothing was held back for validation.
    FederationError
        If the run has no checkpoint, or it cannot be read.
    """
    if best and past.last.is_file() and not past.best.is_file():
        raise ConfigError(
            f"{past.directory} has no best round, because nothing was held back for validation: leave --best out"
        )
    if not past.last.is_file():
        raise FederationError(
            f"{past.directory} has no model to export: the run has not finished a round; "
            f"`nectar simulate resume={past.directory}` continues it"
        )
    return past.checkpoint(best=best)


def network_of(run: Run, checkpoint: Checkpoint, name: str = "") -> Classifier:
    """Return the run's model with the checkpoint's weights, on the CPU, in evaluation mode.

    Where the run learned several, ``name`` is that of one of them, with its own architecture.

    Raises
    ------
    ConfigError
        If the model cannot be built, the weights do not fit it, or there is no model of that name.
    """
    on_cpu = run.config.compute.model_copy(update={"device": "cpu"})
    name = checkpoint.named(name)
    network = (
        replace(run, config=replace(run.config, compute=on_cpu)).with_model(name).build_model()
    )
    weights = dict(checkpoint.model(name))
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        if run.config.model.stays_in_part:
            raise ConfigError(
                f"a part of the model is each site's own ({run.config.model.what_stays}): no complete one is recorded"
            ) from None
        reason = str(error).splitlines()[-1].strip()
        raise ConfigError(
            f"the checkpoint does not fit the model that the record's settings describe ({reason}): export it with the "
            "release that ran it"
        ) from None
    return network.eval()
