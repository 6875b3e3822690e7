"""The exported folder: weights, description, the code that loads them, what the sites sent, and a README."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from common.data.folders import decode
from common.division import Division
from common.errors import ConfigError
from common.learning.run import Run
from common.models import Classifier, building, classifier, initial, own, projected, registry
from common.samples.dataset import DatasetInfo
from common.storage.files import write_json, write_text
from common.storage.tensor_file import reason_of
from common.wire.synthetic_images import SyntheticImages
from nectar.export import pictures, plain
from nectar.export.about import about_model
from nectar.export.check import check
from nectar.export.formats import FORMATS, SAFETENSORS, require_packages
from nectar.export.learned import checkpoint_of, network_of, require_images
from nectar.export.readme import nature_of_images, readme, who_made_images
from nectar.export.source import COPY, Source, source_of
from nectar.export.standalone import join
from nectar.export.synthetic import require_fit, write_synthetic
from nectar.records.record import RunRecord
from server_app.recorder import hard
from server_app.synthetic_sets import contrast_of

NETWORKS = (
    classifier,
    *registry.modules(),
    initial,
    projected,
    registry,
    building,
    own,
    plain,
)
"""What model.py is made of."""

_LICENCE = "Written by `nectar export` from Nectar's own source, Apache-2.0."


@dataclass(frozen=True)
class Export:
    """What was written where.

    Attributes
    ----------
    about : dict
        The content of its model.json.
    who : str
        Whose they are, in words that follow "images that", or empty.
    nature : str
        What they are with regard to real ones, or empty.
    apart : dict of str to float
        How far each format's logits are from those of the run's model, as `check` states it.
    source : Source
        Where the code of its network comes from.
    """

    folder: Path
    about: dict[str, Any]
    images: int
    who: str
    nature: str
    apart: dict[str, float]
    source: Source


@dataclass(frozen=True)
class _Contents:
    """All that goes into the folder."""

    run: Run
    network: Classifier
    weights: Mapping[str, Tensor]
    source: Source
    about: dict[str, Any]
    sent: dict[str, Any] | None


def export(
    past: RunRecord,
    output: Path | None = None,
    *,
    best: bool = False,
    formats: Sequence[str] = (),
    model: str = "",
) -> Export:
    """Write the newest model of ``past``, or that of the round best on validation, into a folder of its own.

    The folder appears whole, by one rename, once a fresh interpreter has loaded it without Nectar and found the
    logits of the run's model. ``output`` defaults to ``export/round-005`` in the record; ``formats`` are written
    beside the weights, and pt2 in any case for a model whose code cannot be copied. ``model`` names one of several.

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
    source = source_of(run.config.model.name)
    kinds = _formats(source, formats)
    server_round, sets = past.synthetic(best=best)
    kept = past.best_sets if best else past.last_sets
    require_fit(sets, run.info, kept)
    about = about_model(past, run, checkpoint, source, kinds)
    sent = _summary(sets, server_round, run.info)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        _write(
            _Contents(run, network, checkpoint.model(model), source, about, sent), kinds, temporary
        )
        if sets:
            write_synthetic(sets, run.info, temporary / "synthetic", contrast_of(kept))
        checked = [kind for kind in kinds if kind != SAFETENSORS or source.kind != "missing"]
        apart = check(network, run.info, temporary, checked)
        temporary.rename(folder)
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"{folder} cannot be written ({reason_of(error)}): choose another --output"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    count = sent["count"] if sent else 0
    words = (who_made_images(run.config), nature_of_images(run.config)) if sent else ("", "")
    return Export(folder, about, count, *words, apart, source)


def _free(output: Path) -> Path:
    """Return the folder to make as an absolute path; ConfigError if something is there."""
    folder = output.expanduser().absolute()
    if folder.exists() or folder.is_symlink():
        raise ConfigError(
            f"{folder} is there already and is left as it is: remove it, or name another folder with --output"
        )
    return folder


def _formats(source: Source, asked: Sequence[str]) -> tuple[str, ...]:
    """Return the formats to write, in their own order."""
    wanted = {SAFETENSORS, *asked} | ({"pt2"} if source.kind == "missing" else set())
    return tuple(name for name in FORMATS if name in wanted)


def _write(contents: _Contents, formats: Sequence[str], folder: Path) -> None:
    weights = {name: value.contiguous() for name, value in contents.weights.items()}
    save_file(weights, folder / FORMATS[SAFETENSORS].file)
    write_json(folder / "model.json", contents.about)
    if contents.source.kind != "missing":
        write_text(folder / "model.py", join(NETWORKS, _title("Rebuild and load the model.")))
    if contents.source.file is not None:
        shutil.copyfile(contents.source.file, folder / COPY)
    reader = join((decode, pictures), _title("Read a picture as the training images were."))
    write_text(folder / "pictures.py", reader)
    write_text(folder / "README.md", readme(contents.about, contents.run.config, contents.sent))
    graphs = [name for name in formats if name != SAFETENSORS]
    if graphs:
        from nectar.export.graph import write_graphs  # seconds of imports, for these alone

        write_graphs(contents.network, contents.run.info, graphs, folder)


def _title(first: str) -> str:
    return f"{first}\n\n{_LICENCE}\n"


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
