"""A data set in words: its content, its place, the skipped files, and how a run divides it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from common.data.division.partitions import class_counts, report
from common.data.division.stratify import group_ids
from common.data.folders.folder import (
    Holdout,
    ImageFile,
    by_reason,
    list_split,
    printable,
    site_split,
    skipped_summary,
    split_folders,
    test_split,
)
from common.data.published.catalogue import NAMES
from common.data.user.rows import column_names, csv_of_rows
from common.division import Division, unheld
from common.samples.dataset import Dataset, DatasetInfo, Split, alike
from common.samples.inputs import normalised, samples
from common.settings.images import ImagesSettings
from common.storage.files import sha256_of, write_atomically, write_text
from nectar import charts
from nectar.text import aligned
from server_app.pictures import grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: files left out that are named one by one, and columns that are described
_NAMED, _COLUMNS = 20, 50

_PUBLIC = "state data.low and data.high, or images.mean and images.std, by what is public"


@dataclass(frozen=True)
class Holdings:
    """Who holds how many images of which class: counts int64 [sites, classes]; ``what`` says so in a title.

    Where the task has no classes, as for text, one column counts the samples.
    """

    sites: tuple[str, ...]
    classes: tuple[str, ...]
    counts: NDArray[np.int64]
    what: str = "images by class"
    unit: str = "images"


def describe_dataset(dataset: Dataset) -> str:
    """Return a description of ``dataset``, its store, and the skipped files with the reasons."""
    info = dataset.info
    rows = [
        ("data set", info.name),
        *_form(info),
        ("training", f"{len(dataset.train):,} {info.unit}{_owners(info, dataset.train)}"),
        ("test", f"{len(dataset.test):,} {info.unit}"),
        *_values(dataset),
        ("checksum", dataset.checksum),
        ("store", str(dataset.store) if dataset.store else "none, it is read by every process"),
        ("not used", _left_out(dataset)),
    ]
    lines = [f"{name:<9} {text}" for name, text in rows]
    skipped = skipped_summary(dataset.skipped, named=_NAMED)
    return "\n".join(lines + [f"  {line}" for line in skipped])


def _form(info: DatasetInfo) -> list[tuple[str, str]]:
    shape = " x ".join(map(str, info.shape))
    if not info.has_values:
        return [
            ("sequences", f"{shape} tokens, each with the one that follows it as its target"),
            ("tokens", f"{len(info.classes):,}"),
        ]
    message = {
        "images": f"{shape} (channels, height, width)",
        "table": f"{info.shape[0]} columns",
        "series": f"{info.shape[0]} channels, {info.shape[2]} steps",
    }
    line = alike(info.classes)
    return [
        (info.unit, message[info.kind]),
        ("classes", f"{len(info.classes)}: {', '.join(info.classes)}"),
        *([("WARNING", line)] if line else []),
    ]


def describe_columns(dataset: Dataset) -> str:
    """Return a description of a table's columns, or series' channels, and of a model's inputs."""
    info = dataset.info
    values = dataset.train.images.astype(np.float64)
    figures = [figure((0, 2, 3)) for figure in (values.min, values.max, values.mean, values.std)]
    given = np.abs(normalised(dataset.train.images, info)).max((0, 2, 3))
    head = ["column", "least", "largest", "mean", "std", "|x| for a model, at most"]
    rows = [
        [name, *(f"{figure[place]:.5g}" for figure in (*figures, given))]
        for place, name in enumerate(column_names(info)[:_COLUMNS])
    ]
    more = info.shape[0] - len(rows)
    message = f"what the training {info.unit} hold (a run computes none of it: {_PUBLIC})"
    return "\n".join([message, aligned([head, *rows]), *([f"and {more:,} more"] if more else [])])


def _values(dataset: Dataset) -> list[tuple[str, str]]:
    """Return the range of stored values."""
    parts = [split.images for split in (dataset.train, dataset.test) if len(split)]
    if not dataset.info.has_images or not parts:
        return []
    least, largest = min(part.min() for part in parts), max(part.max() for part in parts)
    return [("values", f"{least:g} to {largest:g} of {dataset.info.scale:g}")]


def _owners(info: DatasetInfo, train: Split) -> str:
    if train.owners is None:
        return ""
    number = len(np.unique(train.owners))
    if info.name in NAMES:
        return f" of {number:,} owners (partition.kind=natural)"
    return f" of {number:,} groups, which are never split"


def _left_out(dataset: Dataset) -> str:
    if not dataset.skipped:
        return "no file"
    number = len(dataset.skipped)
    return f"{number:,} file{'s' if number > 1 else ''} ({by_reason(dataset.skipped)})"


def partitioned(division: Division) -> Holdings:
    """Return what each simulated site of ``division`` would hold; DataError saying what to change if nothing can."""
    run, clients = division.run, division.config.federation.sites
    sites, parts = tuple(f"partition-{i}" for i in range(clients)), division.partition(clients)
    if not run.task.by_class:
        counts = np.array([[len(part)] for part in parts])
        return Holdings(sites, (run.info.unit,), counts, run.info.unit, run.info.unit)
    counts = class_counts(division.dataset.train.labels, parts, len(run.info.classes))
    unit = run.info.unit
    return Holdings(sites, run.info.classes, counts, f"{unit} by class", unit)


def describe_partition(division: Division, holdings: Holdings) -> str:
    """Return how the training samples are divided, as a table of class counts, or of sequences for text."""
    run, settings = division.run, division.config.partition
    rule = {
        "dirichlet": f"dirichlet, alpha={settings.alpha:g}",
        "dirichlet_groups": f"dirichlet in groups of {settings.group or len(holdings.sites)}, "
        f"alpha={settings.alpha:g}",
        "quantity": f"quantity, alpha={settings.alpha:g}",
        "by_class": f"by_class, {settings.classes_per_client} classes a site",
        "shards": f"shards, {settings.shards_per_client} a site",
    }.get(settings.kind, settings.kind)
    data, unit = run.config.data, run.info.unit
    held = f"the server holds back {len(division.validation):,} {unit} for validation"
    if data.validated_at_sites:
        held = f"each site holds back {data.validation:.3g} of its {unit} for validation"
    head = f"{len(holdings.sites)} sites ({rule}, seed={run.config.seed}); {held}"
    table = report(holdings.counts, holdings.classes, unit)
    return "\n".join([head, table, *division.gaps, *_unheld(division)])


def _unheld(division: Division) -> list[str]:
    return unheld(division.run.info, division.held_out(division.config.federation.sites))


def held_by_sites(division: Division) -> Holdings:
    """Return what each simulated site of ``division`` has in its own folder; DataError if one cannot be used."""
    each = [own(name, dataset) for name, dataset in division.site_datasets.items()]
    sites = tuple(name for held in each for name in held.sites)
    return Holdings(
        sites, division.run.info.classes, np.concatenate([held.counts for held in each])
    )


def describe_sites(division: Division, holdings: Holdings) -> str:
    """Return a description of the simulated sites' own folders, and of what cannot be used."""
    parts = [
        f"{folder}\n{describe_dataset(dataset)}"
        for folder, dataset in zip(
            division.config.site_places, division.site_datasets.values(), strict=True
        )
    ]
    table = report(holdings.counts, holdings.classes, division.run.info.unit, holdings.sites)
    head = f"{len(holdings.sites)} sites with folders of their own"
    more = [*division.shared_groups, *_unheld(division)]
    return "\n\n".join([*parts, "\n".join([head, table, *more])])


def some_of_each_site(division: Division) -> Dataset:
    """Return up to ten images of every class from every simulated site's own folder, as one data set."""
    datasets = list(division.site_datasets.values())
    chosen = [examples(dataset, _SAMPLES) for dataset in datasets]
    images = np.concatenate([split.images[positions] for split, positions in chosen])
    labels = np.concatenate([split.labels[positions] for split, positions in chosen])
    return replace(datasets[0], train=Split(images, labels))


def own(site: str, dataset: Dataset) -> Holdings:
    """Return what a site holds in its own folder."""
    classes = dataset.info.classes
    counts = np.bincount(dataset.train.labels, minlength=len(classes)).astype(np.int64)
    return Holdings((site,), classes, counts[None])


def describe_own(dataset: Dataset) -> str:
    """Return the number of images of each listed class in a site's own folder."""
    counts = own("", dataset).counts[0]
    width = max(map(len, dataset.info.classes))
    return "\n".join(
        f"  {name:<{width}}  {count:>8,}"
        for name, count in zip(dataset.info.classes, counts, strict=True)
    )


def examples(dataset: Dataset, each: int) -> tuple[Split, NDArray[np.int64]]:
    """Return a split that has images, and up to ``each`` positions of every class in it, spread over the class."""
    split = dataset.train if len(dataset.train) else dataset.test
    chosen: list[int] = []
    for label in range(len(dataset.info.classes)):
        held = np.flatnonzero(split.labels == label)
        places = np.linspace(0, len(held) - 1, min(each, len(held))).round().astype(np.int64)
        chosen += held[places].tolist() if len(held) else []
    return split, np.array(chosen, dtype=np.int64)


# ---- drawing -------------------------------------------------------------------------------------
# The pictures of `nectar data`: who holds what as shades with numbers, and some images of each class.

#: more sites or classes than this get no numbers, and smaller cells; more than _MAX_NAMED, no names
_MAX_NUMBERED, _MAX_NAMED = 30, 110
_CELL, _SMALL_CELL, _ROOM, _SMALL_ROOM = 0.46, 0.16, 1.6, 1.1  # inches
_NARROWEST = 3.2

_SAMPLES, _MIN_SIDE = 10, 64
_MARGIN, _TEXT = 8, 13  # pixels


def draw_counts(holdings: Holdings, title: str) -> Figure:
    """Draw a cell for each site (column) and class (row), the darker the more images are in it; roots, for contrast."""
    sites, classes = holdings.counts.shape
    numbered = max(sites, classes) <= _MAX_NUMBERED
    cell, room = (_CELL, _ROOM) if numbered else (_SMALL_CELL, _SMALL_ROOM)
    width = sites * cell + max(map(len, holdings.classes)) * 0.09 + _ROOM
    names = [name.removeprefix("partition-") for name in holdings.sites]
    with charts.drawing(max(_NARROWEST, width), classes * cell + room) as figure:
        axes = figure.add_subplot()
        shades = np.sqrt(holdings.counts.T)
        # light enough for dark numbers at any count
        axes.imshow(shades, cmap="Blues", vmin=0, vmax=max(1.0, 1.8 * float(shades.max())))
        if numbered:
            totals = holdings.counts.sum(1).tolist()
            names = [f"{name}\n{_short(n)}" for name, n in zip(names, totals, strict=True)]
            for column, row in np.argwhere(holdings.counts).tolist():
                count = _short(int(holdings.counts[column, row]))
                axes.text(column, row, count, ha="center", va="center", size=8)
        names = names if sites <= _MAX_NUMBERED else []
        axes.set_xticks(range(len(names)), names)
        shown = holdings.classes if classes <= _MAX_NAMED else ()
        axes.set_yticks(range(len(shown)), shown)
        axes.grid(visible=False)
        axes.tick_params(length=0, labelsize=10 if numbered else 7)
        axes.set_xlabel(f"site, and its {holdings.unit}" if numbered else "site")
        axes.set_title(title, loc="left")
    return figure


def _short(count: int) -> str:
    """Write a count in four characters at most."""
    if count < 10_000:
        return str(count)
    return f"{count / 1000:.0f}k" if count < 1_000_000 else f"{count / 1e6:.0f}M"


def draw_samples(dataset: Dataset) -> Image.Image:
    """Draw ten images of each class, as the model sees them, in a row with the class's name."""
    split, chosen = examples(dataset, _SAMPLES)
    shown = samples(split, dataset.info, chosen)
    sheet = grid(shown.inputs(slice(None)), shown.labels, dataset.info).convert("RGB")
    rows = sorted(set(shown.labels.tolist()))
    times = max(1, _MIN_SIDE * len(rows) // sheet.height)
    sheet = sheet.resize((sheet.width * times, sheet.height * times), Image.Resampling.NEAREST)
    font = _font()
    names = [dataset.info.classes[row] for row in rows]
    margin = round(max(font.getlength(name) for name in names)) + 2 * _MARGIN
    picture = Image.new("RGB", (margin + sheet.width, sheet.height), "white")
    picture.paste(sheet, (margin, 0))
    draw = ImageDraw.Draw(picture)
    for place, name in enumerate(names):
        middle = (place + 0.5) * sheet.height / len(names)
        draw.text((margin - _MARGIN, middle), name, fill="black", font=font, anchor="rm")
    return picture


def save_samples(dataset: Dataset, path: Path) -> None:
    """Write ten of each class to ``path``, as the model is given them: images, a table's rows as text, or curves."""
    info = dataset.info
    if info.kind == "images":
        write_atomically(path, partial(draw_samples(dataset).save, format="PNG"))
        return
    split, chosen = examples(dataset, _SAMPLES)
    shown = samples(split, info, chosen)
    names = [info.classes[label] for label in shown.labels.tolist()]
    values = shown.inputs(slice(None))
    if info.kind == "table":
        write_text(path, csv_of_rows(values, names, info))
    else:
        curves = values[:, :, 0].numpy()
        charts.save(charts.small_multiples(curves, names, column_names(info)), path)


def _font() -> ImageFont.FreeTypeFont:
    """Return matplotlib's own font, which knows more scripts than Pillow's."""
    import matplotlib as mpl

    return ImageFont.truetype(Path(mpl.get_data_path(), "fonts/ttf/DejaVuSans.ttf"), _TEXT)


# ---- same pictures -------------------------------------------------------------------------------
# Files of a folder that are in training and in test.

_SAME_PICTURES_NAMED = 10


def same_pictures(division: Division) -> list[str]:
    """Return as lines which test files of a run's folder equal one that its sites learn from; empty if none does."""
    if not division.config.images.folder:
        return []
    train, test = _parts(division)
    known = {sha256_of(path): path for path in reversed(train)}
    pairs = sorted(
        (str(path), str(known[digest])) for path in test if (digest := sha256_of(path)) in known
    )
    if not pairs:
        return []
    lines = [
        f"{len(pairs):,} test pictures are in training too, so the test accuracy counts what was memorised: remove "
        "them, or keep pictures together by images.group",
        *(f"  {one} is {other}" for one, other in pairs[:_SAME_PICTURES_NAMED]),
    ]
    if pairs[_SAME_PICTURES_NAMED:]:
        lines.append(f"  and {len(pairs) - _SAME_PICTURES_NAMED:,} more")
    return lines


def _parts(division: Division) -> list[list[Path]]:
    """Return the training and the test pictures, as a run divides them."""
    config, dataset = division.config, division.dataset
    folder = config.data_dir / Path(config.images.folder).expanduser()
    train, test = (
        _used(folder, place, dataset, config.images) if place else []
        for place in split_folders(folder, config.images.names)
    )
    if config.images.sites:
        sites = zip(config.images.site_folders, division.site_datasets.values(), strict=True)
        theirs = [
            _used(path, site_split(path, config.images), held, config.images)
            for path, held in sites
        ]
        train = [file for part in theirs for file in part]
    if test or not train or config.images.sites:
        return [[path for path, _ in part] for part in (train, test)]
    labels = np.array([file.label for _, file in train])
    groups = group_ids(file.group for _, file in train) if config.images.group else None
    cut = Holdout(config.data.test_share, config.seed)
    parts = test_split(Split(np.empty(len(train)), labels, groups), cut)
    return [[train[at][0] for at in part] for part in parts]


def _used(
    folder: Path, split: str, dataset: Dataset, images: ImagesSettings
) -> list[tuple[Path, ImageFile]]:
    skipped = {one.path for one in dataset.skipped}
    files = list_split(folder, split, images.names, images.group).files
    return [(folder / file.path, file) for file in files if printable(file.path) not in skipped]
