"""`nectar score`: an exported model's figures on labelled images or rows, or its classes for unlabelled ones."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from common.config.keys import FILE_KEY
from common.errors import ConfigError, DataError
from nectar.arguments import looks_like_path, parse_arguments
from nectar.command_line import command
from nectar.options import allow_imports_option
from nectar.records.record_imports import import_policy_of

if TYPE_CHECKING:
    from common.config.resolved import Config
    from common.samples.dataset import Skipped
    from nectar.export.model import ExportedModel

HELP = """\
Prints accuracy, loss, recall and precision by class, and the confusions. EXPORT is a folder that `nectar export` made.
FOLDER holds a folder for each class, named as in model.json (with or without an index, as in 00-airplane), with
pictures in any common format; they are brought to the model's size. For a model of rows, give a CSV and
data.label=NAME, the column of the classes. With dataset=NAME or data.file=FILE instead, the data set's test images or
rows are scored, with the seed, classes and test share of the run.

With --predict no labels are needed: a CSV line for each input gives its class and that class's score, its share of the
softmax (not a calibrated probability). Give a picture, a folder of pictures at any depth, or a CSV whose first line
names the model's columns in any order. An input that cannot be read is listed with the problem.

\b
nectar score digits-model ~/pictures/test
nectar score digits-model dataset=digits compute.device=cpu
nectar score churn-model rows.csv data.label=churned
nectar score churn-model new.csv --predict --output churn.csv
"""


_LABEL = "data.label="


@command(HELP)
@click.argument("export", metavar="EXPORT", help="the exported model's folder")
@click.argument(
    "words",
    metavar="FOLDER|FILE|dataset=NAME [KEY=VALUE]...",
    help="the images or rows; compute.device, evaluation.batch",
    nargs=-1,
    required=True,
)
@click.option(
    "--json",
    "figures_to",
    metavar="FILE",
    help="also write the figures and the unreadable files to FILE",
)
@click.option(
    "--predict", is_flag=True, help="print a class and its score for each unlabelled input"
)
@click.option(
    "--output", metavar="FILE", help="write the predictions to FILE, which must not exist"
)
@allow_imports_option
def main(
    export: str,
    words: tuple[str, ...],
    figures_to: str | None,
    predict: bool,
    output: str | None,
    allow_imports: str,
) -> int:
    """Score a model or predict with it; return 0, or 1 if no input could be read."""
    places = [Path(word).expanduser() for word in words if looks_like_path(word)]
    label = ""
    if places and places[0].suffix.lower() == ".csv":  # a column of this file, not of a data set
        label = next((word[len(_LABEL) :] for word in words if word.startswith(_LABEL)), label)
        words = tuple(word for word in words if not word.startswith(_LABEL))
    settings = parse_arguments(word for word in words if not looks_like_path(word))
    of_dataset = "dataset" in settings or any(word.startswith(f"{FILE_KEY}=") for word in words)
    if len(places) != (0 if of_dataset and not predict else 1):
        instead = "" if predict else ", or dataset=NAME instead"
        raise ConfigError(
            f"nectar score takes an exported model and one folder of images or CSV of rows{instead}."
        )
    to_json = _new_file("--json", figures_to, fresh=False)
    to_csv = _new_file("--output", output, fresh=True)
    if (to_json and predict) or (to_csv and not predict):
        wrong, right = ("--json", "without") if predict else ("--output", "with")
        raise ConfigError(f"{wrong} goes {right} --predict.")
    from common.config.loading import load
    from common.learning.compute import use_threads
    from nectar.export.inputs import with_runs_own
    from nectar.export.model import ExportedModel

    exported = ExportedModel.open(Path(export).expanduser(), import_policy_of(allow_imports))
    config = load(with_runs_own(settings, exported) if of_dataset else settings)
    use_threads(config.compute.server_cores)
    if predict:
        return _predict(exported, places[0], config, to_csv)
    return _score(exported, places[0] if places else None, label, config, to_json)


def _new_file(option: str, typed: str | None, *, fresh: bool) -> Path | None:
    """Return the file to write; ConfigError if its folder is missing, or a folder or a ``fresh`` file is there."""
    if not typed:
        return None
    path = Path(typed).expanduser()
    if not path.parent.is_dir():
        raise ConfigError(f"{option}={path}: there is no folder {path.parent}.")
    if path.is_dir() or (fresh and path.exists()):
        raise ConfigError(f"{option}={path} exists: name another file.")
    return path


def _score(
    exported: ExportedModel, place: Path | None, label: str, config: Config, to: Path | None
) -> int:
    from common.data.folders.folder import skipped_summary
    from common.storage.files import write_json

    text, figures, skipped = _figures(exported, place, label, config)
    print(text)
    if skipped:
        print(f"\n{len(skipped)} inputs were not used:", *skipped_summary(skipped), sep="\n")
    if to:
        files = [{"path": one.path, "reason": one.reason} for one in skipped]
        write_json(to, {**figures, "skipped": files})
    return 0


def _figures(
    exported: ExportedModel, place: Path | None, label: str, config: Config
) -> tuple[str, Mapping[str, Any], list[Skipped]]:
    """Return the figures as text and as JSON can hold them, and the inputs that could not be read."""
    from common.data.folders.folder import skipped_summary
    from common.learning.compute import torch_device
    from nectar.export.inputs import batches, labelled, own_pictures, split_batches, test_split
    from nectar.export.scoring import (
        UNKNOWN,
        as_text,
        parts_as_dict,
        parts_as_text,
        score,
    )

    device, size = torch_device(config.compute.device), config.evaluation.batch
    precision = config.compute.precision
    skipped: list[Skipped] = []
    if place is None:
        found = score(
            exported, split_batches(test_split(config, exported), size), device, precision
        )
        return as_text(found), found.to_dict(), skipped
    inputs = labelled(place, exported, label)
    own = own_pictures(place, exported) if exported.input.kind == "images" else None
    if own is not None:
        scores = {
            name: score(exported, split_batches(split, size), device, precision)
            for name, split in own.parts.items()
        }
        return parts_as_text(scores), parts_as_dict(scores), [*own.skipped]
    try:
        found = score(exported, batches(inputs, size, skipped), device, precision)
    except DataError:
        if not skipped:
            raise
        reasons = "; ".join(skipped_summary(skipped))
        raise DataError(f"none of the inputs in {place} can be read ({reasons})") from None
    text = as_text(found)
    if exported.split is not None and exported.split.folder:
        text += f"\n\n{UNKNOWN}"
    return text, found.to_dict(), skipped


def _predict(exported: ExportedModel, place: Path, config: Config, to: Path | None) -> int:
    from common.learning.compute import torch_device
    from common.storage.files import csv_text, write_text
    from nectar.export.inputs import unlabelled
    from nectar.export.scoring import COLUMNS, predictions

    found = list(
        predictions(
            exported,
            iter(unlabelled(place, exported)),
            torch_device(config.compute.device),
            batch=config.evaluation.batch,
            precision=config.compute.precision,
        )
    )
    text = csv_text([*COLUMNS], found)
    if to:
        write_text(to, text)
    else:
        print(text, end="")
    failed = sum(bool(problem) for *_, problem in found)
    if failed or to:
        what = f"; {failed} could not be read" if failed else ""
        print(f"{len(found) - failed} of {len(found)} inputs have a class{what}", file=sys.stderr)
    return 0 if failed < len(found) else 1
