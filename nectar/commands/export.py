"""`nectar export`: a run's model and synthetic images as a folder, for use without Nectar."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from common.config.keys import FILE_KEY
from common.config.resolved import Config
from common.errors import ConfigError, DataError
from common.sites import KEPT_MODEL, site_slug
from nectar.command_line import command
from nectar.options import allow_imports_option, record
from nectar.records.outputs import output_folder
from nectar.records.record import record_at
from nectar.records.record_imports import import_policy_of

if TYPE_CHECKING:
    from nectar.export.bundle import Export

HELP = """\
Writes a run's newest model as safetensors, as a program of torch.export (pt2) that needs no code of Nectar's, and the
images that its sites sent as PNG files in a folder a class and as one npz. A run that is not over gives what it has so
far. What was written is read again, and kept only if its logits are those of the run's model.

\b
nectar export latest --output digits-model
nectar export latest --output digits-model --format onnx
"""


@command(HELP)
@record
@click.option(
    "--output",
    metavar="DIR",
    help="the folder to make (default: export/round-005 or so in the record); never one that is there",
)
@click.option(
    "--best",
    is_flag=True,
    help="the round with the best accuracy on the validation share instead of the newest",
)
@click.option(
    "--model",
    metavar="NAME",
    default="",
    help="one of several models, such as a site's that trained by itself (method=local)",
)
@click.option(
    "--site",
    metavar="NAME",
    default="",
    help="a simulated site's own model, as last evaluated there; at a real site: nectar site export",
)
@click.option(
    "--format",
    "forms",
    metavar="NAMES",
    help="forms that the model must have: onnx (for ONNX runtimes), pt2 (torch.export, also written unasked where "
    "torch can follow the network) or both, with a comma; they take pixel values from 0 to 1, any number of "
    "images",
)
@allow_imports_option
def main(
    named: str,
    output: str | None,
    best: bool,
    model: str,
    site: str,
    forms: str | None,
    allow_imports: str,
) -> int:
    """Export a run's model and images; return 0."""
    folder = None if output is None else output_folder(output, fresh=True)
    from nectar.export.formats import read_formats

    formats = () if forms is None else read_formats(forms)
    from nectar.export.bundle import export, export_of_site
    from nectar.export.readme import nature_of_images, who_made_images
    from nectar.records.record import RunRecord
    from nectar.text import share

    past = RunRecord.open(record_at(named), import_policy_of(allow_imports))
    if site:
        kept, policy = kept_model(past.directory, site), past.import_policy
        folder = folder or past.directory / "export" / f"site-{site_slug(site)}"
        data = dict(past.provenance.get("data", {})).get("sha256", "")
        done = export_of_site(kept, folder, formats=formats, policy=policy, data=data)
        print(f"the model of {site}'s own: {done.folder}")
        _end(done, past.config)
        return 0
    done = export(past, folder, best=best or bool(past.result_round), formats=formats, model=model)
    run, figures = done.about["run"], done.about["figures"]["test"]
    accuracy = f", test accuracy {share(figures['accuracy'])}" if figures else ""
    print(f"the model of round {run['round']} of {run['rounds']}{accuracy}: {done.folder}")
    if not past.completed:
        print(f"the run is not complete ({run['outcome']}): this is its newest checkpoint's state")
    if done.images:
        who, nature = who_made_images(past.config), nature_of_images(past.config)
        print(f"{done.images} images that {who}: {done.folder / 'synthetic'}\n{nature}")
    else:
        print("the method sends no images, so there is no synthetic set")
    if done.no_pt2:
        print(f"there is no model.pt2, so only Nectar reads the model: {done.no_pt2}")
    _end(done, past.config)
    return 0


def kept_model(record: Path, site: str) -> Path:
    """Return the file of a simulated site's personal model; ConfigError if the record has none."""
    state = record / "state"
    kept = state / site_slug(site) / KEPT_MODEL
    if not kept.is_file():
        found = sorted(path.parent.name for path in state.glob(f"*/{KEPT_MODEL}"))
        raise ConfigError(
            f"{record} has no model of {site}'s own, but of {', '.join(found) or 'no site'}: a site keeps one where it "
            "judges it (evaluation.on=sites) and method or model.personal gives it one; a real site's is on its machine"
        )
    return kept


def _end(done: Export, config: Config) -> None:
    """Print the result of the check and the next command."""
    differences = ", ".join(f"{kind} {distance:.1e}" for kind, distance in done.differences.items())
    print(f"verified: same outputs as the run's model (largest difference: {differences})")
    score = f"nectar score {shlex.quote(str(done.folder))} {_unseen(config)}"
    print(f"done: {done.folder}; next: {score}")


def _unseen(config: Config) -> str:
    """Return the word with which `nectar score` evaluates a model on data that its run held out."""
    from nectar.export.model import is_folder

    if config.data.file:
        words = [f"{FILE_KEY}={config.data.file}"]
        if config.data.file.endswith(".csv"):
            words.append(f"data.label={config.data.label}")
        return shlex.join(words)
    if not is_folder(config):
        return "FOLDER-OF-PICTURES" if config.images.sites else f"dataset={config.dataset}"
    from common.data.folders.folder import split_folders

    folder = config.data_dir / Path(config.images.folder).expanduser()
    try:
        train, test = split_folders(folder, config.images.names)
    except DataError:  # it was moved since
        return "FOLDER-OF-PICTURES"
    return shlex.quote(str(folder / (test or train or "")))
