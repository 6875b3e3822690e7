"""`nectar predict`: the class that an exported model gives pictures or rows that have none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from common.errors import ConfigError
from nectar.arguments import AllowImports, argument, is_place, option, parse_arguments
from nectar.records.record_imports import import_policy_of

HELP = """\
Writes a line an input: its name, the class that the model gives it, and that class's score (its share of the softmax,
which is no probability of being right unless somebody calibrated it). EXPORT is a folder that `nectar export` made. For
a model of pictures, what follows is a picture or a folder of them at any depth; for one of rows a CSV whose first line
names the model's columns, in any order, beside others. A file or a line that cannot be read is named, with what is
wrong, and the others go on.

\b
nectar predict digits-model ~/pictures
nectar predict churn-model rows.csv --output churn.csv compute.device=cpu
"""


def main(
    export: Annotated[str, argument("EXPORT", "the exported model's folder")],
    words: Annotated[
        list[str],
        argument("FOLDER|FILE [KEY=VALUE]...", "the inputs; compute.device, evaluation.batch"),
    ],
    output: Annotated[
        str | None, option("FILE", "write the lines to FILE, which is not there yet")
    ] = None,
    allow_imports: AllowImports = "",
) -> int:
    """Predict what the words say; return 0, or 1 if nothing could be read."""
    places = [word for word in words if is_place(word)]
    if len(places) != 1:
        raise ConfigError(
            "nectar predict takes an exported model and one folder or file of inputs."
        )
    to = Path(output).expanduser() if output else None
    if to and (to.exists() or not to.parent.is_dir()):
        why = (
            "is there already" if to.exists() else f"lies in no folder that is there ({to.parent})"
        )
        raise ConfigError(f"--output={to} {why}: name another file.")
    from common.config.loading import load
    from common.learning.compute import torch_device, use_threads
    from common.storage.files import write_text
    from nectar.export.predicting import as_csv, inputs_of, predictions
    from nectar.export.scoring import ExportedModel

    config = load(parse_arguments(word for word in words if not is_place(word)))
    exported = ExportedModel.open(Path(export).expanduser(), import_policy_of(allow_imports))
    use_threads(config.compute.server_cores)
    given = inputs_of(Path(places[0]).expanduser(), exported)
    device, compute = torch_device(config.compute.device), config.compute
    found = list(
        predictions(
            exported, given, device, batch=config.evaluation.batch, precision=compute.precision
        )
    )
    if to:
        write_text(to, as_csv(found))
    else:
        print(as_csv(found), end="")
    failed = sum(bool(one.problem) for one in found)
    if failed or to:
        what = f"; {failed} could not be read" if failed else ""
        print(f"{len(found) - failed} of {len(found)} inputs have a class{what}", file=sys.stderr)
    return 0 if failed < len(found) else 1
