"""A data set in words: what it holds, where it lies, what was left out, and how a run divides it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from common.data.division.counts import class_counts, lacking, report
from common.data.folders.folder import account, by_reason
from common.data.published.catalogue import NAMES
from common.division import Division
from common.samples.class_names import alike
from common.samples.dataset import Dataset, DatasetInfo, Split
from common.samples.inputs import normalised
from common.samples.row_text import column_names

#: files left out that are named one by one, and columns that are described
_NAMED, _COLUMNS = 20, 50

_PUBLIC = "state data.low and data.high, or images.mean and images.std, by what is public"


@dataclass(frozen=True)
class Holdings:
    """Who holds how many images of which class: counts int64 [sites, classes]; ``what`` says so in a title.

    Where the task tells no classes apart, as of text, one column counts the samples.
    """

    sites: tuple[str, ...]
    classes: tuple[str, ...]
    counts: NDArray[np.int64]
    what: str = "images by class"
    unit: str = "images"


def describe_dataset(dataset: Dataset, *, named: int = _NAMED) -> str:
    """Say what ``dataset`` is, where its store lies, and which files were left out and why."""
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
    return "\n".join(lines + [f"  {line}" for line in account(dataset.skipped, named=named)])


def _form(info: DatasetInfo) -> list[tuple[str, str]]:
    shape = " x ".join(map(str, info.shape))
    if not info.has_values:
        return [
            ("sequences", f"{shape} tokens, each with the one that follows it as its target"),
            ("tokens", f"{len(info.classes):,}"),
        ]
    said = {
        "images": f"{shape} (channels, height, width)",
        "table": f"{info.shape[0]} columns",
        "series": f"{info.shape[0]} channels, {info.shape[2]} steps",
    }
    line = alike(info.classes)
    return [
        (info.unit, said[info.kind]),
        ("classes", f"{len(info.classes)}: {', '.join(info.classes)}"),
        *([("WARNING", line)] if line else []),
    ]


def describe_columns(dataset: Dataset) -> str:
    """Say what the columns of a table, or the channels of series, hold, and how a model is given them."""
    info = dataset.info
    values = dataset.train.images.astype(np.float64)
    figures = [
        values.min((0, 2, 3)),
        values.max((0, 2, 3)),
        values.mean((0, 2, 3)),
        values.std((0, 2, 3)),
    ]
    given = np.abs(normalised(dataset.train.images, info)).max((0, 2, 3))
    head = ["column", "least", "largest", "mean", "std", "|x| for a model, at most"]
    rows = [
        [name, *(f"{figure[place]:.5g}" for figure in (*figures, given))]
        for place, name in enumerate(column_names(info)[:_COLUMNS])
    ]
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    lines = [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in [head, *rows]
    ]
    more = info.shape[0] - len(rows)
    lines += [f"and {more:,} more"] if more else []
    return "\n".join(
        [f"what the training {info.unit} hold (a run computes none of it: {_PUBLIC})", *lines]
    )


def _values(dataset: Dataset) -> list[tuple[str, str]]:
    """Say between which stored values pictures lie, and what to do where they are nearly black."""
    parts = [split.images for split in (dataset.train, dataset.test) if len(split)]
    if not dataset.info.has_images or not parts:
        return []
    least, largest = min(part.min() for part in parts), max(part.max() for part in parts)
    said = f"{least:g} to {largest:g} of {dataset.info.scale:g}"
    share = (float(largest) - 0.5) / dataset.info.scale
    if dataset.info.name in NAMES or not 0 < share < 1 / 8:
        return [("values", said)]
    white = 2 ** math.ceil(math.log2(share * 2**16)) - 1
    advice = f"nearly black: where a device fills few of 16 bits, set images.white, such as images.white={white}"
    return [("values", f"{said}, {advice}")]


def _owners(info: DatasetInfo, train: Split) -> str:
    if train.owners is None:
        return ""
    number = len(np.unique(train.owners))
    if info.name in NAMES:
        return f" of {number:,} owners (partition.kind=natural)"
    return f" of {number:,} groups, which are kept whole"


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
    """Say how the training samples are divided, as a table of class counts; of text, of sequences."""
    run, settings = division.run, division.config.partition
    rule = {
        "dirichlet": f"dirichlet, alpha={settings.alpha:g}",
        "quantity": f"quantity, alpha={settings.alpha:g}",
        "by_class": f"by_class, {settings.classes_per_client} classes a client",
        "shards": f"shards, {settings.shards_per_client} a client",
    }.get(settings.kind, settings.kind)
    data, unit = run.config.data, run.info.unit
    held = f"the server holds back {len(division.validation):,} {unit} for validation"
    if data.validated_at_sites:
        held = f"each site holds back {data.validation:.3g} of its {unit} for validation"
    head = f"{len(holdings.sites)} sites ({rule}, seed={run.config.seed}); {held}"
    told = [head, report(holdings.counts, holdings.classes, unit), *division.gaps]
    return "\n".join([*told, *_unheld(division, holdings)])


def _unheld(division: Division, holdings: Holdings) -> list[str]:
    """Say of which classes no site holds anything out to be judged by."""
    config, dataset = division.config, division.dataset
    if not config.data.held_by_sites or not division.run.task.by_class or config.private:
        return []
    parts = zip(holdings.sites, division.partition(config.federation.sites), strict=True)
    held = np.concatenate([division.share(site, dataset, part)[1] for site, part in parts])
    said = lacking(
        dataset.train.labels[held], holdings.classes, f"{holdings.unit} held out at the sites"
    )
    return [said] if said else []


def held_by_sites(division: Division) -> Holdings:
    """Return what each simulated site of ``division`` has in its own folder; DataError if one cannot be used."""
    each = [own(name, dataset) for name, dataset in division.site_datasets.items()]
    sites = tuple(name for held in each for name in held.sites)
    return Holdings(
        sites, division.run.info.classes, np.concatenate([held.counts for held in each])
    )


def describe_sites(division: Division, holdings: Holdings) -> str:
    """Say what the simulated sites' own folders hold, and what of them cannot be used."""
    parts = [
        f"{folder}\n{describe_dataset(dataset)}"
        for folder, dataset in zip(
            division.config.images.site_folders, division.site_datasets.values(), strict=True
        )
    ]
    table = report(holdings.counts, holdings.classes, division.run.info.unit, holdings.sites)
    return "\n\n".join([*parts, f"{len(holdings.sites)} sites with folders of their own\n{table}"])


def some_of_each_site(division: Division, each: int = 10) -> Dataset:
    """Return up to ``each`` images of every class from every simulated site's own folder, as one data set."""
    datasets = list(division.site_datasets.values())
    chosen = [examples(dataset, each) for dataset in datasets]
    images = np.concatenate([split.images[positions] for split, positions in chosen])
    labels = np.concatenate([split.labels[positions] for split, positions in chosen])
    return replace(datasets[0], train=Split(images, labels))


def own(site: str, dataset: Dataset) -> Holdings:
    """Return what a site holds in a folder of its own."""
    classes = dataset.info.classes
    counts = np.bincount(dataset.train.labels, minlength=len(classes)).astype(np.int64)
    return Holdings((site,), classes, counts[None])


def describe_own(dataset: Dataset) -> str:
    """Say how many images of each class of the list a site's own folder has."""
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
