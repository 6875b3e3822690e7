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
from common.config.resolved import Config
from common.config.user_parts import ImportPolicy
from common.data.user.rows import column_names
from common.division import Division
from common.errors import ConfigError, FederationError
from common.learning.run import Run
from common.models import Classifier
from common.samples.dataset import DatasetInfo
from common.settings.base import Settings
from common.sites import ALL_SITES, site_slug
from common.storage import tensor_file
from common.storage.files import write_json, write_text
from common.storage.tensor_file import TensorFileError, unreadable_reason
from common.wire.images import SyntheticImages
from nectar.export.formats import FORMATS, PT2, SAFETENSORS, Graphs, check_weights, require_packages
from nectar.export.scoring import MODEL_SCHEMA
from nectar.export.split import split_settings
from nectar.export.synthetic import require_fit, write_synthetic
from nectar.records.record import RunRecord
from nectar.records.synthetic_sets import contrast_of
from nectar.report.facts import facts_of, unknown_method
from nectar.text import plural, share
from server_app.checkpoint import Checkpoint
from server_app.pictures import hard


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
    require_values(Division(past.config).run, past.directory, past.last)
    checkpoint = checkpoint_of(past, best=best)
    run = Division(past.config).run.with_model(checkpoint.named(model))
    which = f"-{model}" if model else ""
    name = f"{'best-' if best else ''}round-{checkpoint.server_round:03d}{which}"
    folder = _free(Path(output or past.directory / "export" / name))
    network = network_of(run, checkpoint, model)
    server_round, sets = past.synthetic(best=best)
    kept = past.best_sets if best else past.last_sets
    require_fit(sets, run.info, kept)
    sent = _summary(sets, server_round, run.info)
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
    folder = _free(Path(output or kept.with_name(name)))
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
        apart = {SAFETENSORS: check_weights(network, run.info, temporary)}
        graphs, lacks = _write_graphs(network, run.info, formats, temporary)
        apart |= graphs
        about["formats"] = {
            name: {"file": FORMATS[name].file, "input": FORMATS[name].takes} for name in apart
        }
        write_json(temporary / "model.json", about)
        write_text(temporary / "README.md", readme(about, run.config, sent, lacks))
        if more is not None:
            more(temporary / "synthetic")
        temporary.rename(folder)
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"{folder} cannot be written ({unreadable_reason(error)}): choose another --output"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Export(folder, about, sent["count"] if sent else 0, apart, lacks)


def about_model(past: RunRecord, run: Run, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the content of model.json for ``checkpoint`` but for its ``formats``.

    It is what the model is, what it takes, how good it was and where it comes from.
    """
    origin = past.provenance
    line: Mapping[str, Any] = next(
        (x for x in past.rounds if x["round"] == checkpoint.server_round), {}
    )
    figures = {  # null where nobody evaluated, or where a figure was not finite
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
    return {
        "schema": MODEL_SCHEMA,
        "model": config.model.architecture(),
        "input": {
            "kind": info.kind,
            "shape": list(info.shape),
            "mean": list(info.mean),
            "std": list(info.std),
            "scale": info.scale,
            **(_of_pictures(config) if info.has_images else _of_rows(info)),
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
            "split": split_settings(config),
        },
    }


def _of_pictures(config: Config) -> dict[str, Any]:
    return {
        "page": config.images.page,
        "white": config.images.white,
        "black": config.images.black,
        "pixels": "raw / scale, from 0 to 1",
    }


def _of_rows(info: DatasetInfo) -> dict[str, Any]:
    """Return the columns' names and the bounds to which raw values are brought first, if there are any."""
    return {"columns": list(column_names(info)), "low": list(info.low), "high": list(info.high)}


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


# ---- learned -------------------------------------------------------------------------------------
# What a run learned: its newest or best checkpoint, and the network with those weights.


def require_values(run: Run, folder: Path, weights: Path) -> None:
    """Refuse a run whose model takes neither pictures nor rows of one's own: ConfigError."""
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

    Where the run learned several, ``name`` is that of one of them, and its architecture that one's own.

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
                f"a part of the model is each site's own ({run.config.model.what_stays}): the record has no whole one"
            ) from None
        reason = str(error).splitlines()[-1].strip()
        raise ConfigError(
            f"the checkpoint does not fit the model that the record's settings describe ({reason}): export it with the "
            "release that ran it"
        ) from None
    return network.eval()


# ---- readme --------------------------------------------------------------------------------------
# The README of an exported folder.

_WEIGHTS = "`model.safetensors` holds the weights of `{name}`, which `nectar score` and `predict` read by model.json.\n"

_PICTURE = """\
The files below need nothing of Nectar; they take pixel values from 0 to 1, any number of images. Of a picture, with
Pillow and NumPy:

```python
import numpy as np
from PIL import Image, ImageOps

picture = ImageOps.exif_transpose(Image.open("picture.png")).convert("{mode}")
picture = ImageOps.fit(picture, ({side}, {side}), Image.Resampling.BICUBIC)
pixels = np.asarray(picture, np.float32).reshape(1, {side}, {side}, {channels}).transpose(0, 3, 1, 2) / 255
```
"""

_ROW = """\
The files below need nothing of Nectar; they take raw values [n, {shape}], any number of {unit}, in the order of
model.json's `columns`. Of a CSV with columns of these names, with pandas:

```python
import json
import numpy as np
import pandas

columns = json.load(open("model.json"))["input"]["columns"]
pixels = pandas.read_csv("rows.csv")[columns].to_numpy(np.float32).reshape(-1, {shape})
```
"""

_SERIES = """\
The files below need nothing of Nectar; they take raw values `pixels`, float32 [n, {shape}], any number of {unit}, with
the channels in the order of model.json's `columns`.
"""

_USES = {
    PT2: """\
`model.pt2` is a program of `torch.export`, which needs torch and no code of the network:

```python
import torch

logits = torch.export.load("model.pt2").module()(torch.from_numpy(pixels))
print(logits.softmax(1))  # classes in the order of model.json
```
""",
    "onnx": """\
`model.onnx` is for ONNX runtimes, here onnxruntime:

```python
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
[logits] = session.run(["logits"], {"pixels": pixels})
```
""",
}

_SYNTHETIC = """\
## What {who}

`synthetic/` holds {count} images of round {round}{of}. {nature}

- `synthetic/synthetic.npz`: `images` float32 [n, C, H, W] as the model takes them (normalised), `labels` int64 [n],
  `sites` [n]. This is what the server had, to the bit: `numpy.load("synthetic/synthetic.npz")`.
{files}
"""

_FILES = """\
- `synthetic/images/<class>/<site>-<index>.png`: the same to look at and for any other trainer, in pixel space,
  rounded to bytes, and clipped to what a picture can show or, for a method whose images lie elsewhere, each stretched
  to its own extremes. `torchvision.datasets.ImageFolder` sorts folders by name
  and numbers them in that order; the number in front of each name makes that order the labels' own.{missing}
"""


_ROWS_FILE = "- `synthetic/rows.csv`: the same in raw values, with the class's name first.\n"


def readme(
    about: dict[str, Any], config: Config, sent: dict[str, Any] | None, lacks: str = ""
) -> str:
    """Return the README's text.

    Parameters
    ----------
    about : dict
        model.json's content.
    sent : dict, optional
        ``count``, ``sites``, ``round`` and ``missing`` (classes without an image) of the synthetic set.
    lacks : str
        Why there is no model.pt2, if there is none.
    """
    run = about["run"]
    lines = [
        f"# {run['dataset']}, {run['method']}, round {run['round']}",
        "",
        f"{_whose(run)} after round {run['round']} of {run['rounds']}. "
        f"{_progress(run)}{_accuracy(about)}",
        "",
        _WEIGHTS.format(name=about["model"]["name"]),
        _taken(about["input"]),
        *(_USES[name] for name in about["formats"] if name in _USES),
    ]
    if lacks:
        lines += [f"There is no model.pt2: {lacks}.", ""]
    if sent:
        pictures = about["input"]["kind"] == "images"
        files = _FILES.format(**_phrases(config, sent)) if pictures else _ROWS_FILE
        lines.append(_SYNTHETIC.format(files=files.rstrip(), **(sent | _phrases(config, sent))))
    return "\n".join(lines)


def _taken(given: Mapping[str, Any]) -> str:
    """Return how what the graphs take is made."""
    channels, side, _ = given["shape"]
    if given["kind"] == "images":
        return _PICTURE.format(mode="L" if channels == 1 else "RGB", side=side, channels=channels)
    shape, unit = (
        ", ".join(map(str, given["shape"])),
        "rows" if given["kind"] == "table" else "series",
    )
    return (_ROW if given["kind"] == "table" else _SERIES).format(shape=shape, unit=unit)


def _whose(run: dict[str, Any]) -> str:
    if "site" in run:
        return f"The model of the site `{run['site']}`'s own, as it judged it last,"
    return f"The global model of the Nectar run `{run['id']}`"


def _progress(run: dict[str, Any]) -> str:
    if run["outcome"] == "completed":
        return ""
    return f"THE RUN IS NOT COMPLETE ({run['outcome'] or 'no outcome is recorded'}). "


def _accuracy(about: dict[str, Any]) -> str:
    figures = about["figures"]
    message = [
        f"{name} accuracy {share(part['accuracy'])}, loss {share(part['loss'])}"
        for name, part in figures.items()
        if part
    ]
    return "; ".join(message).capitalize() + "." if message else "The server did not evaluate it."


def who_made_images(config: Config) -> str:
    """Return whose the images are, in words that follow "what" or "images that"."""
    disclosed = config.settings.disclosure()
    facts = None
    if disclosed is not None:
        facts = facts_of(config.method, disclosed, config.settings.model_dump().get)
    return "the server made" if facts is not None and facts.carries else "the sites sent"


def _sender(config: Config) -> tuple[str, Settings]:
    """Return the method whose sites send images, the run's own or one inside it; the run's own where none does."""
    for name, settings in config.methods.items():
        sent = settings.disclosure()
        if sent is not None and sent.images:
            return config.method if name == config.section else name, settings
    return config.method, config.settings


def nature_of_images(config: Config) -> str:
    """Return in a sentence or two what the images are with regard to the sites' real ones."""
    method, settings = _sender(config)
    disclosed = settings.disclosure()
    if disclosed is None:
        return unknown_method(method)
    if disclosed.images and disclosed.unchanged:
        return "THESE ARE REAL IMAGES of the sites' own data, sent as they are: treat them as that data."
    if not disclosed.images or not disclosed.began_as:
        facts = facts_of(method, disclosed, settings.model_dump().get)
        return unknown_method(method) if facts is None else " ".join(facts.sent)
    if disclosed.began_as == "real examples":
        start = getattr(settings, "start", "real")
        what = "REAL IMAGES" if start == "real" else "MEANS OF A FEW REAL IMAGES"
        return (
            f"THEY BEGAN AS {what} of the sites' own data (start={start}) and may look like them: do not treat them "
            "as private."
        )
    if disclosed.began_as == "class means":
        return (
            "They began as means of each site's classes with noise upon them, and were distilled; none is a real "
            "image. They are functions of private data all the same, and nothing about them is differentially private."
        )
    return (
        "They began as noise and were distilled; none is a real image. They are functions of private data all the "
        "same, and nothing about them is differentially private."
    )


def _phrases(config: Config, sent: dict[str, Any]) -> dict[str, str]:
    missing, sites = sent["missing"], sent["sites"]
    message = (
        f" There is none of {', '.join(missing)}; for these ImageFolder needs `allow_empty=True`."
    )
    return {
        "who": who_made_images(config),
        "of": "" if ALL_SITES in sites else f", by {plural(len(sites), 'site')}",
        "nature": nature_of_images(config),
        "missing": message if missing else "",
    }
