"""User-defined data through the store that every process shares, and their description, which needs reading."""

from __future__ import annotations

import importlib.metadata
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from common.data.division.stratify import warn_of_shared
from common.data.folders.decode import bounded
from common.data.folders.folder import Holdout, with_test
from common.data.store import (
    Contents,
    Stored,
    checksum_of,
    digest_of,
    open_store,
    shared_store,
    store_roots,
)
from common.data.user.arrays import (
    ON_BOTH_SIDES,
    check_classes,
    contents_of,
    read_function,
    read_npz,
)
from common.data.user.hub import read_hub, read_torchvision
from common.data.user.rows import check_reach, constants, info_of_columns, info_of_rows, read_rows
from common.errors import DataError, RowsError
from common.samples.dataset import Dataset, DatasetInfo, number_of
from common.settings.columns import agreed_columns
from common.settings.images import ImagesSettings
from common.settings.sections import (
    FILE,
    FUNCTION,
    HUB,
    TABLE_ENDING,
    TORCHVISION,
    DataSettings,
    kind_of,
)
from common.storage.files import sha256_of
from common.storage.limits import ANYWHERE, Bounds

log = logging.getLogger("flwr")

_READER = 2  # another number makes every store be built again
_PRIVATE = 0o700

_NO_TABLE = (
    "data.file is not a table that can be read with this data.label: this site's log says why"
)

_PUBLISHED: Mapping[str, tuple[str, Callable[[str, Path, int, Bounds], dict[str, Any]]]] = {
    TORCHVISION: ("torchvision", read_torchvision),
    HUB: ("flwr-datasets", read_hub),
}
"""Sets that a package fetches: the package, whose version distinguishes stores, and the reader."""


@dataclass(frozen=True)
class Source:
    """The source of user-defined data: its name in messages, its store's name, what identifies a version.

    ``read`` returns what it holds.
    """

    name: str
    store: str
    fingerprint: str
    read: Callable[[], Contents]

    def stored(self, roots: Sequence[Path]) -> Stored:
        """Return the content of the set's store, which is built if missing."""
        return shared_store(self.store, roots, self.fingerprint, self.read, _PRIVATE)


def read_user_data(
    name: str,
    data_dir: Path,
    images: ImagesSettings,
    data: DataSettings,
    holdout: Holdout,
    bounds: Bounds = ANYWHERE,
) -> Dataset:
    """Return a user-defined data set, named by one of the forms of :mod:`common.settings.sections`.

    A file's store is known by the file's checksum, a published set's by its name: neither is read again. A function
    is called in every process, since only that shows whether its result has changed; it must return the same
    each time.
    """
    size = data.size
    if kind_of(name) == FILE:
        bounds.inside(Path(data.file), "data.file")
        if not data.file:
            raise DataError(
                "the run names the sites' columns and no table for the server: set data.file if it is to evaluate "
                "or a simulation divides rows, else evaluation.on=sites with data.site_holdout=0.2, or "
                "evaluation.on=none"
            )
    source = _source(name, data_dir, data, bounds, images.names)
    spoken, roots = source.name, store_roots(data_dir, bounds=bounds)
    try:
        with bounded(spoken):
            stored = source.stored(roots)
    except DataError as error:
        if Path(data.file).suffix != TABLE_ENDING:
            raise
        # the names of the file's columns are the site's, except those that the run names
        reported = (error.reported if data.columns else "") or _NO_TABLE
        raise type(error)(str(error), reported=reported) from error
    if size and stored.train.images.shape[2:] != (size, size):
        raise DataError(
            f"data.size={size} is for sets of pictures; {spoken} brings arrays of "
            f"{' x '.join(map(str, stored.train.images.shape[1:]))}: leave it out"
        )
    both, number = stored.about.get(ON_BOTH_SIDES, (0, 0))
    warn_of_shared(both, number, spoken)
    stored = with_test(stored, source.store, roots, holdout, _PRIVATE)
    if kind_of(name) not in _PUBLISHED and not images.names:
        stored = as_classes(stored, spoken, measured=data.classes == "labels")
    info = _info(spoken, stored, images, data)
    brought = [stored.about.get(key) for key in ("mean", "std", "low", "high")]
    if any(brought):
        stored = replace(stored, checksum=digest_of([stored.checksum, brought]))
    return stored.described(info)


def read_site_table(
    images: ImagesSettings,
    data: DataSettings,
    file: Path,
    keep: Path | None,
    *,
    private: bool = False,
) -> Dataset:
    """Return a site's own table, all for training, as the columns and classes that the run names; else DataError."""
    if file.suffix != TABLE_ENDING or not file.is_file():
        raise DataError(
            f"{file} is not a .csv file, and the run learns from tables (data.columns): name one",
            reported="the data that this site's node config names are not an existing .csv file, and the run learns "
            "from tables",
        )
    own = data.model_copy(update={"file": str(file), "owner": ""})
    roots = store_roots(keep) if keep else store_roots()
    try:
        stored = _source(FILE, file.parent, own, ANYWHERE, images.names).stored(roots)
        dataset = stored.described(info_of_columns(images, data))
        check_reach(dataset, data.scale)
    except DataError as error:
        known = "" if private and isinstance(error, RowsError) else error.reported
        reported = known or "its table cannot be read with the run's columns and classes"
        raise DataError(str(error), reported=f"{reported} (this site's log says more)") from error
    return dataset


def is_at_hand(name: str, data_dir: Path, size: int) -> bool:
    """Return whether reading the set would fetch nothing."""
    if kind_of(name) not in _PUBLISHED:
        return True
    source = _source(name, data_dir, DataSettings(size=size), ANYWHERE)
    for root in store_roots(data_dir):
        try:
            open_store(root / source.store, source.fingerprint)
        except OSError:
            continue
        return True
    return False


def _source(
    name: str,
    data_dir: Path,
    data: DataSettings,
    bounds: Bounds,
    classes: tuple[str, ...] = (),
) -> Source:
    """Return where a set is from; a function is called for it."""
    kind, size = kind_of(name) or "", data.size
    # what the arrays are, beyond their source; nothing for images
    form: tuple[str, ...] = ()
    if data.kind != "images":
        form = (data.kind, data.label, data.group or data.owner, data.header, data.axes)
    if data.columns:
        form = (*form, data.columns, *classes)
    if kind in _PUBLISHED:
        package, reader = _PUBLISHED[kind]
        return Source(
            name,
            _store_name(name, name, size, str(data_dir)),
            digest_of([_READER, name, size, _version(package)]),
            lambda: contents_of(reader(name, data_dir, size, bounds), name),
        )
    if kind == FUNCTION:
        found = read_function(name, data_dir, size)
        contents = contents_of(found, name, data.kind, data.axes)
        held = checksum_of(contents.train, contents.test)
        fingerprint = digest_of([_READER, held, dict(contents.about)])
        return Source(name, _store_name(name, name, size, *form), fingerprint, lambda: contents)
    path = Path(data.file)
    return Source(
        path.name,
        _store_name(path.stem, data.file, *form),
        digest_of([_READER, _file_digest(path), *form]),
        lambda: contents_of(_read_file(path, data, classes), str(path), data.kind, data.axes),
    )


def _file_digest(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise DataError(
            f"data.file={path} cannot be read ({error.strerror}): every machine that runs the federation needs it at "
            "that path"
        ) from error


def _read_file(path: Path, data: DataSettings, classes: tuple[str, ...]) -> dict[str, Any]:
    if path.suffix != TABLE_ENDING:
        return read_npz(path)
    columns = agreed_columns(data.columns)
    found = read_rows(
        path,
        data.label,
        data.group or data.owner,
        named=data.header == "first",
        columns=columns,
        of="group" if data.group else "owner",
    )
    return found | {"classes": classes} if columns else found


def _store_name(stem: str, *place: object) -> str:
    return f"own-{re.sub(r'[^A-Za-z0-9._-]', '-', stem)[:40]}-{digest_of(place)[:8]}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _info(name: str, stored: Stored, images: ImagesSettings, data: DataSettings) -> DatasetInfo:
    """Describe the set: the run's settings override what the set brings."""
    shape = stored.train.images.shape[1:]
    classes = images.names or tuple(stored.about["classes"])
    largest = max(int(split.labels.max(initial=0)) for split in (stored.train, stored.test))
    check_classes(list(classes), largest, "images.classes" if images.names else name)
    if stored.about.get("named") and list(classes) != stored.about["classes"]:
        raise DataError(
            f"{name}: its labels are the classes' names, in the order {', '.join(stored.about['classes'])}: state "
            "images.classes so, or leave it out"
        )
    if data.columns:
        return info_of_columns(images, data)
    if data.kind != "images":
        return info_of_rows(name, stored, classes, images, data)
    mean, std = (
        constants(key, images, stored.about, shape[0], name, needed=True) for key in ("mean", "std")
    )
    return DatasetInfo(name, shape, classes, mean, std, float(stored.about["scale"]))


# ---- targets -------------------------------------------------------------------------------------
# Whether labels are classes: what looks measured is refused, and numbers that leave some out are coded.

#: more different numbers than this are taken for measurements where so few rows have each, on average
_FEW, _ROWS = 20, 10

_DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}( .*)?")


def as_classes(stored: Stored, name: str, *, measured: bool) -> Stored:
    """Return a set whose labels are coded as a table's are, unless it names its classes: from 0, none left out."""
    if stored.about.get("stated"):
        return stored
    labels = np.concatenate([stored.train.labels, stored.test.labels])
    there = np.unique(labels)
    names = [stored.about["classes"][label] for label in there]
    why = "" if measured else _looks_measured(names, len(labels))
    if why:
        raise DataError(
            f"{name}: its labels look like a measurement, not like classes ({why}): name another column (data.label), "
            "or write a column of classes; a number itself is not learned (no regression); data.classes=labels takes "
            "every value as a class all the same"
        )
    if len(there) == len(stored.about["classes"]) or len(there) < 2:
        return stored
    train, test = (
        replace(split, labels=np.searchsorted(there, split.labels).astype(np.int64))
        for split in (stored.train, stored.test)
    )
    return replace(stored, train=train, test=test, about={**stored.about, "classes": names})


def _looks_measured(names: Sequence[str], rows: int) -> str:
    """Return what label values look like, if they do not look like classes."""
    if 2 * sum(map(bool, map(_DATE.fullmatch, names))) > len(names):
        return "dates"
    numbers = [number for number in map(number_of, names) if number is not None]
    if any(number % 1 for number in numbers):
        return "numbers with a fraction"
    if len(numbers) == len(names) > _FEW and rows < _ROWS * len(names):
        return f"{len(names)} different numbers in {rows:,} rows"
    if len(names) > _FEW and rows < 2 * len(names):  # prices, times, percentages
        return f"{len(names)} different values in {rows:,} rows"
    return ""
