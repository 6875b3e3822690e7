"""`nectar export`: a run's model and synthetic images as a folder that needs no Nectar."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from common.config.consistency import FILE_KEY
from common.config.resolved import Config
from common.errors import DataError
from nectar.records.outputs import output_folder
from nectar.records.record import record_at
from nectar.records.record_imports import judge_of
from nectar.words import AllowImports, Record, flag, option

if TYPE_CHECKING:
    from nectar.export.bundle import Export

HELP = """\
Writes a run's newest model as safetensors, with what plain PyTorch needs to load it, and the images that its sites
sent as PNG files in a folder a class and as one npz. A run that is not over gives what it has so far. What was written
is loaded in a fresh Python without Nectar, and kept only if its logits are those of the run's model.

\b
nectar export latest --output digits-model
nectar export latest --output digits-model --format onnx
"""


def main(
    named: Record,
    output: Annotated[
        str | None,
        option(
            "DIR",
            "the folder to make (default: export/round-005 or so in the record); never one that is there",
        ),
    ] = None,
    best: Annotated[
        bool,
        flag(
            "--best",
            "the round with the best accuracy on the validation share instead of the newest",
        ),
    ] = False,
    model: Annotated[
        str,
        option(
            "NAME", "one of several models, such as a site's that trained by itself (method=local)"
        ),
    ] = "",
    forms: Annotated[
        str | None,
        option(
            "NAMES",
            "more forms of the model: onnx (for ONNX runtimes), pt2 (torch.export, needs no code) or both, with "
            "a comma; both take pixel values from 0 to 1, any number of images",
            name="--format",
        ),
    ] = None,
    allow_imports: AllowImports = "",
) -> int:
    """Export what the words say; return 0."""
    folder = None if output is None else output_folder(output, fresh=True)
    from nectar.export.formats import read_formats

    formats = () if forms is None else read_formats(forms)
    from nectar.export.bundle import export
    from nectar.records.record import RunRecord
    from nectar.report.text import share

    past = RunRecord.open(record_at(named), judge_of(allow_imports))
    done = export(past, folder, best=best, formats=formats, model=model)
    run, figures = done.about["run"], done.about["figures"]["test"]
    accuracy = f", test accuracy {share(figures['accuracy'])}" if figures else ""
    print(f"the model of round {run['round']} of {run['rounds']}{accuracy}: {done.folder}")
    if not past.completed:
        print(f"the run is not complete ({run['outcome']}): this is its newest checkpoint's state")
    if done.images:
        print(f"{done.images} images that {done.who}: {done.folder / 'synthetic'}")
        print(done.nature)
    else:
        print("the method sends no images, so there is no synthetic set")
    for line in _notes(done, past.config):
        print(line)
    return 0


def _notes(done: Export, config: Config) -> Iterator[str]:
    """Yield what the model's code needs, how the check went, and what to do next."""
    name, packages = done.about["model"]["name"], " and ".join(done.source.packages)
    if done.source.kind == "missing":
        yield (
            f"the code of {name} cannot be copied ({done.source.reason}): the folder has its weights, and model.pt2, "
            "which needs no code"
        )
    elif packages:
        yield f"model.py needs {packages} beside torch and safetensors"
    apart = ", ".join(f"{kind} {distance:.1e}" for kind, distance in done.apart.items())
    yield f"loaded without Nectar, it gives the logits of the run's model; largest difference: {apart}"
    yield f"done: {done.folder}; next: nectar score {shlex.quote(str(done.folder))} {_unseen(config)}"


def _unseen(config: Config) -> str:
    """Return the word that has `nectar score` judge a model on what its run held out."""
    from nectar.export.split import is_folder

    if config.data.file:
        return shlex.quote(f"{FILE_KEY}={config.data.file}")
    if not is_folder(config):
        return "FOLDER-OF-PICTURES" if config.images.sites else f"dataset={config.dataset}"
    from common.data.folders.folder import split_folders

    folder = config.data_dir / Path(config.images.folder).expanduser()
    try:
        train, test = split_folders(folder, config.images.names)
    except DataError:  # it was moved since
        return "FOLDER-OF-PICTURES"
    return shlex.quote(str(folder / (test or train or "")))
