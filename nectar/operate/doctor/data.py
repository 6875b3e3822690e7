"""The images on this machine: those that all sites share, or a site's own folder."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from common.config.resolved import Config
from common.data.published.files import Source
from common.data.published.sources import SOURCES
from common.data.store import open_store, store_roots
from common.division import Division
from common.errors import DataError, NectarError
from common.samples.dataset import Dataset
from common.settings.sections import kind_of
from nectar.dataset.account import own
from nectar.operate.doctor.check import Check, Level


def folder(config: Config, path: Path) -> Check:
    """Look whether a site's own folder of images can be used, as the site itself would."""
    try:
        with tempfile.TemporaryDirectory() as keep, quiet():
            dataset = Division(config).site_dataset(path, Path(keep))
            counts = own("", dataset).counts[0]
    except NectarError as error:
        return Check("data", "fail", str(error))
    held = ", ".join(
        f"{name} {count}" for name, count in zip(dataset.info.classes, counts, strict=True) if count
    )
    text = f"{path}: {len(dataset.train):,} images ({held})"
    return _told(text, dataset, "nectar data --folder")


def shared(config: Config, *, elsewhere: bool) -> Check:
    """Look whether the run's data set can be read from this machine's data directory; nothing is fetched or written.

    Parameters
    ----------
    elsewhere : bool
        Whether the server that needs it may be another machine: then a lack here is no failure.
    """
    if kind_of(config.dataset):
        return _own(config, elsewhere)
    where = "" if config.dataset == "digits" else f" below {config.data_dir}"
    try:
        with tempfile.TemporaryDirectory() as keep, quiet():
            sizes, dataset = _read(config, Path(keep))
    except NectarError as error:
        level: Level = "warn" if elsewhere else "fail"
        hint = "; it is the server that needs it, on its own machine" if elsewhere else ""
        return Check("data", level, f"{error}{hint}")
    unit = Division(config).run.info.unit
    text = f"{config.dataset}{where}: {sizes[0]:,} {unit} to learn from, {sizes[1]:,} to test"
    return Check("data", "ok", text) if dataset is None else _told(text, dataset, "nectar data")


def _own(config: Config, elsewhere: bool) -> Check:
    """Look for the file of a set of one's own; any other kind is neither imported nor fetched here."""
    if not config.data.file:
        text = f"{config.dataset}: `nectar data dataset={config.dataset}` reads it once and says what it holds"
        return Check("data", "ok", text)
    if not os.access(config.data.file, os.R_OK):
        level: Level = "warn" if elsewhere else "fail"
        return Check("data", level, f"{config.data.file} is not there or cannot be read")
    return Check(
        "data", "ok", f"{config.data.file}: `nectar data data.file=...` says what it holds"
    )


def _read(config: Config, keep: Path) -> tuple[tuple[int, int], Dataset | None]:
    """Return how many images there are to learn from and to test; what a run would write goes to ``keep``."""
    data_dir = config.data_dir.expanduser().resolve()
    source = SOURCES.get(config.dataset)
    if source is None:
        images = config.images
        if images.folder:
            place = str(data_dir / Path(images.folder).expanduser())
            images = images.model_copy(update={"folder": place})
        dataset = Division(replace(config, data_dir=keep, images=images)).dataset
        return (len(dataset.train), len(dataset.test)), dataset
    for root in store_roots(data_dir):
        with suppress(OSError):
            stored = open_store(root / config.dataset, source.fingerprint(data_dir))
            return (len(stored.train), len(stored.test)), None
    if isinstance(source, Source) and (missing := source.missing(data_dir)):
        raise DataError(
            f"{config.dataset}: {data_dir / missing[0].path} is missing: `nectar data dataset={config.dataset} "
            f"data-dir={data_dir}` fetches it where there is a network, or point data-dir or NECTAR_DATA to a folder "
            "that has it"
        )
    train, test = source.splits(data_dir)
    return (len(train), len(test)), None


def _told(text: str, dataset: Dataset, command: str) -> Check:
    if not dataset.skipped:
        return Check("data", "ok", text)
    return Check(
        "data", "warn", f"{text}; not used: {len(dataset.skipped)}, `{command}` names them"
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what a data set logs as it is read out of the list of checks."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
