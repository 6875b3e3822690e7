"""`nectar score`: the figures of an exported model on labelled images or rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from common.config.keys import FILE_KEY
from common.errors import ConfigError
from nectar.arguments import AllowImports, argument, is_place, option, parse_arguments
from nectar.records.record_imports import import_policy_of

HELP = """\
Prints accuracy, loss, each class's images, recall and precision, and what was taken for what. EXPORT is a folder that
`nectar export` made. FOLDER holds a folder a class, named as in its model.json (an index in front, as in 00-airplane,
is welcome), with pictures in any common format; they are brought to the model's size. For a model of rows a CSV stands
there, whose column data.label=NAME has the classes. With dataset=NAME or data.file=FILE in its place, the test images
or rows of a data set count; seed, classes and test share are the run's.

\b
nectar score digits-model ~/pictures/test
nectar score digits-model dataset=digits compute.device=cpu
nectar score churn-model rows.csv data.label=churned
"""


_LABEL = "data.label="


def main(
    export: Annotated[str, argument("EXPORT", "the exported model's folder")],
    words: Annotated[
        list[str],
        argument(
            "FOLDER|FILE|dataset=NAME [KEY=VALUE]...",
            "the images or rows; compute.device, evaluation.batch",
        ),
    ],
    figures_to: Annotated[
        str | None,
        option(
            "FILE",
            "write the figures, and the files that could not be read, to FILE too",
            name="--json",
        ),
    ] = None,
    allow_imports: AllowImports = "",
) -> int:
    """Score what the words say; return 0."""
    places = [word for word in words if is_place(word)]
    label = ""
    if places and places[0].lower().endswith(".csv"):  # a file's column, where no data set is named
        label = next((w[len(_LABEL) :] for w in words if w.startswith(_LABEL)), label)
        words = [word for word in words if not word.startswith(_LABEL)]
    settings = parse_arguments(word for word in words if not is_place(word))
    of_dataset = "dataset" in settings or any(word.startswith(f"{FILE_KEY}=") for word in words)
    if len(places) != (0 if of_dataset else 1):
        raise ConfigError(
            "nectar score takes an exported model and a folder of images, a CSV of rows, or dataset=NAME in its place."
        )
    to = Path(figures_to).expanduser() if figures_to else None
    if to and not to.parent.is_dir():
        raise ConfigError(f"--json={to}: there is no folder {to.parent}.")
    from common.config.loading import load
    from common.data.folders.folder import skipped_summary
    from common.learning.compute import torch_device, use_threads
    from common.storage.files import write_json
    from nectar.export.scoring import (
        UNKNOWN,
        ExportedModel,
        PictureFolder,
        as_dict,
        as_text,
        row_batches,
        score,
        score_by_part,
        split_batches,
        text_of,
        with_runs_own,
    )

    policy = import_policy_of(allow_imports)
    exported = ExportedModel.open(Path(export).expanduser(), policy)
    config = load(with_runs_own(settings, exported) if of_dataset else settings)
    use_threads(config.compute.server_cores)
    device, size = torch_device(config.compute.device), config.evaluation.batch
    precision = config.compute.precision
    place = None if of_dataset else Path(places[0]).expanduser()
    pictures = PictureFolder(place, exported) if place and exported.kind == "images" else None
    parts = exported.split.parts(pictures.folder) if pictures and exported.split else None
    if pictures and parts:
        scores = score_by_part(exported, pictures, parts, device, batch=size, precision=precision)
        content, text = as_dict(scores), text_of(scores)
    else:
        if pictures:
            batches = pictures.batches(size)
        elif place:
            batches = row_batches(place, label, exported, size)
        else:
            batches = split_batches(config, exported, size)
        figures = score(exported, batches, device, precision)
        content, text = figures.to_dict(), as_text(figures)
        text += f"\n\n{UNKNOWN}" if pictures and exported.split else ""
    print(text)
    skipped = pictures.skipped if pictures else []
    if skipped:
        print(f"\n{len(skipped)} files were not used:", *skipped_summary(skipped), sep="\n")
    if to:
        files = [{"path": one.path, "reason": one.reason} for one in skipped]
        write_json(to, content | {"skipped": files})
    return 0
