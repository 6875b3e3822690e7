"""``load``: a data set by name or by folder, once a process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from pathlib import Path

from common.data.catalogue import NAMES, describe
from common.data.dataset import Dataset, DatasetInfo, array_digest, combined_checksum
from common.data.digits import read_digits
from common.data.download import ensure_files
from common.data.files import Source
from common.data.image_sets import read_central, read_site
from common.data.sources import SOURCES
from common.data.store import Contents, shared, store_roots
from common.errors import DataError
from common.settings.images import ImagesSettings

_loaded: dict[Hashable, Dataset] = {}
_lock = threading.Lock()  # in-process engines may run devices in threads


def load(name: str, data_dir: Path, images: ImagesSettings | None = None) -> Dataset:
    """Return a data set, loaded once per process from a store that processes share.

    digits is embedded. A folder of images lies where ``images.folder`` says. LEAF's lie below
    ``data_dir/leaf`` as its scripts made them and are never downloaded. The others lie below
    ``data_dir`` in torchvision's layout and are downloaded on first use where there is a network.
    Arrays are read-only.

    Args:
        name: one of ``catalogue.NAMES``; any other one where ``images`` describes a folder.
        data_dir: the data directory; without permission to write there, the store goes to the
            user's cache.
        images: the run's settings of that name; None where there can only be a name.

    Raises:
        DataError: the name is unknown, or a file is missing, truncated or damaged; it is named. A
            folder of images that cannot be used: why.
    """
    info = describe(name, images)
    data_dir = Path(data_dir).expanduser().resolve()

    def read() -> Dataset:
        if name not in NAMES and images is not None:
            return read_central(info, images, data_dir)
        return _load(info, data_dir)

    return _once((name, data_dir, images), read)


def load_site(name: str, images: ImagesSettings, folder: Path, keep: Path | None = None) -> Dataset:
    """Return a site's own folder of images as the run's data set, without a test split, once per process.

    Args:
        name: the run's data set, a folder of images.
        images: its settings.
        folder: ``<folder>/<class>/*`` or ``<folder>/train/<class>/*``.
        keep: below which directory the store goes; None for the user's cache.

    Raises:
        DataError: the data set is no folder of images, or the site's cannot be used: why.
    """
    info = describe(name, images)
    if name in NAMES:
        raise DataError(
            f"a site's own folder needs a data set that is a folder of images, which {name} is not: choose "
            "dataset=images, or one of conf/dataset with a section `images`"
        )
    return _once((name, folder, images, keep), lambda: read_site(info, images, folder, keep))


def _once(key: Hashable, read: Callable[[], Dataset]) -> Dataset:
    with _lock:
        if key not in _loaded:
            _loaded[key] = read()
        return _loaded[key]


def _load(info: DatasetInfo, data_dir: Path) -> Dataset:
    if info.name == "digits":
        train, test = read_digits()
        arrays = (train.images, train.labels, test.images, test.labels)
        for array in arrays:
            array.setflags(write=False)
        checksum = combined_checksum([array_digest(array) for array in arrays])
        return Dataset(info, train, test, checksum)

    source = SOURCES[info.name]

    def read_source() -> Contents:
        if isinstance(source, Source):
            ensure_files(info.name, source, data_dir)
        return Contents(*source.splits(data_dir))

    stored = shared(info.name, store_roots(data_dir), source.fingerprint(data_dir), read_source)
    for split in (stored.train, stored.test):
        if split.images.shape[1:] != info.shape:
            raise DataError(
                f"{info.name} below {data_dir} has images of shape {split.images.shape[1:]}, not "
                f"{info.shape}"
            )
    return Dataset(info, stored.train, stored.test, stored.checksum, store=stored.folder)
