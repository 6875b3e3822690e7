"""`nectar data`: prepare and describe a data set, and count and plot how a run divides it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from common.config.resolved import Config
from common.config.text import from_home
from common.errors import ConfigError, DataError
from common.models.registry import KINDS
from nectar.arguments import parse_arguments, resolved, with_fitting_sites
from nectar.command_line import command
from nectar.options import allow_imports_option, config_file_option, settings_words
from nectar.records.outputs import with_recorded
from nectar.records.record_imports import import_policy_of

if TYPE_CHECKING:
    from common.samples.dataset import Dataset
    from nectar.dataset.account import Holdings

HELP = """\
Downloads or reads the data set once, describes it, lists the files that cannot be used, and counts each simulated
site's images by class.

\b
nectar data dataset=cifar10 partition.alpha=0.01 --draw counts.png
nectar data dataset=torchvision:SVHN
nectar data data.file=own.npz --samples samples.png   your arrays
nectar data data.file=own.csv data.label=CLASS        a table: its columns
nectar data dataset=images images.folder=/abs/path images.classes=cat,dog
nectar data dataset=images images.sites=/abs/a,/abs/b simulated sites' folders
nectar data dataset=images images.classes=cat,dog --folder /abs/own   a site's
"""

_SAMPLES = (".png", ".csv", ".svg")
#: what some of each class are written as, by what the data are
_ENDINGS = {"images": ".png", "table": ".csv", "series": ".svg"}
_CHARTS = (".png", ".svg")


@command(HELP)
@settings_words
@config_file_option
@click.option(
    "--draw",
    metavar="FILE",
    default="",
    help="plot the counts as .png or .svg; separate two files by a comma",
)
@click.option(
    "--samples",
    metavar="FILE",
    default="",
    help="write ten of each class: images as the model sees them (.png), rows of a table (.csv), series (.svg)",
)
@click.option(
    "--folder",
    metavar="PATH",
    help="check PATH/<class>/* or a .csv file as a site does that has it as data",
)
@allow_imports_option
def main(
    words: tuple[str, ...],
    config_file: str | None,
    draw: str,
    samples: str,
    folder: str | None,
    allow_imports: str,
) -> int:
    """Prepare, describe and plot a data set; return 0."""
    charts = [_target(text, _CHARTS) for text in draw.split(",") if text]
    sheets = [_target(text, _SAMPLES) for text in [samples] if text]
    asked_for = parse_arguments(words, file=config_file)
    policy = import_policy_of(allow_imports) if asked_for.get("resume") else None
    config = resolved(with_recorded(asked_for), policy)
    for sheet in sheets:
        _need_ending(config, sheet)
    refused = None
    if folder is not None:
        dataset, holdings = _site(config, Path.cwd() / from_home(folder))
    else:
        dataset, holdings, refused = _run(config)
    _draw(dataset, holdings, charts, sheets)
    if refused is not None:
        raise refused
    return 0


def _need_ending(config: Config, path: Path) -> None:
    """Raise ConfigError if the file's ending does not suit the data."""
    from common.data.published.catalogue import describe
    from common.settings.sections import kind_of

    if not kind_of(config.dataset) and not describe(config.dataset, config.images).has_images:
        raise ConfigError(f"--samples draws images, and {config.dataset} is text: leave it out.")
    kind = config.data.kind
    if path.suffix.lower() != _ENDINGS[kind]:
        raise ConfigError(
            f"--samples {path.name} cannot show what {KINDS[kind]} {'are' if kind == 'images' else 'holds'}: choose "
            f"{_ENDINGS[kind]}."
        )


def _run(config: Config) -> tuple[Dataset, Holdings, DataError | None]:
    """Describe the run's data set and how it is divided, or why it cannot be, or the folders of simulated sites."""
    from common.division import Division
    from nectar.dataset import account

    division = Division(config)
    if config.site_places:
        holdings = account.held_by_sites(division)
        print(account.describe_sites(division, holdings), flush=True)
        for line in account.same_pictures(division):
            print(line)
        return account.some_of_each_site(division), holdings, None
    print(account.describe_dataset(division.dataset), flush=True)
    if division.dataset.info.kind in ("table", "series"):
        print(f"\n{account.describe_columns(division.dataset)}", flush=True)
    refused = None
    try:
        division = Division(with_fitting_sites(config))
        holdings = account.partitioned(division)
        print(f"\n{account.describe_partition(division, holdings)}", flush=True)
    except DataError as error:
        refused, holdings = error, account.own("all", division.dataset)
        print(
            f"\ntraining {holdings.unit} by class:\n{account.describe_own(division.dataset)}",
            flush=True,
        )
    for line in account.same_pictures(division):
        print(line)
    return division.dataset, holdings, refused


def _site(config: Config, folder: Path) -> tuple[Dataset, Holdings]:
    """Describe a site's data folder, as the site would read it."""
    from common.division import Division
    from nectar.dataset import account

    dataset = Division(config).site_dataset(folder, None)
    print(f"{account.describe_dataset(dataset)}\n\n{dataset.info.unit} of each class in {folder}:")
    print(account.describe_own(dataset))
    return dataset, account.own(folder.name, dataset)


def _draw(dataset: Dataset, holdings: Holdings, charts: list[Path], sheets: list[Path]) -> None:
    if not charts and not sheets:
        return
    from nectar.charts import save
    from nectar.dataset import account

    for path in charts:
        figure = account.draw_counts(holdings, f"{dataset.info.name}: {holdings.what}")
        _written(path, partial(save, figure, path))
    for path in sheets:
        _written(path, partial(account.save_samples, dataset, path))


def _target(text: str, endings: tuple[str, ...]) -> Path:
    """Refuse, before any work, a file that could not be written at its end."""
    path = Path.cwd() / from_home(text)
    if path.suffix.lower() not in endings:
        raise ConfigError(f"a picture cannot be written to {text}: choose {' or '.join(endings)}.")
    if not path.parent.is_dir():
        raise ConfigError(f"{text} cannot be written: there is no folder {path.parent}.")
    return path


def _written(path: Path, write: partial[None]) -> None:
    try:
        write()
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}).") from None
    print(f"wrote {path}")
