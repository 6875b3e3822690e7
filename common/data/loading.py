"""``load``: a data set by name, a folder or user data, once a process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from pathlib import Path

from common.data.folders.folder import Holdout, read_central, read_site
from common.data.published.catalogue import NAMES, describe
from common.data.published.sources import SOURCES, DownloadSource, ensure_files, read_digits
from common.data.store import Contents, checksum_of, shared_store, store_roots
from common.data.user.reading import read_site_table, read_user_data
from common.errors import DataError
from common.samples.dataset import Dataset, DatasetInfo
from common.settings.images import ImagesSettings
from common.settings.sections import DataSettings, kind_of
from common.storage.limits import ANYWHERE, Bounds

log = logging.getLogger("flwr")

_loaded: dict[Hashable, Dataset] = {}
_generation = 0
# In-process engines may run devices in threads, and a user's function may load a set itself.
_lock = threading.RLock()


def load(
    name: str,
    data_dir: Path,
    images: ImagesSettings | None = None,
    data: DataSettings | None = None,
    seed: int = 0,
    bounds: Bounds = ANYWHERE,
) -> Dataset:
    """Return a data set, loaded once per process from a store that processes share.

    digits is embedded. ``images.folder`` is the path of a folder of images; user data are where their form says.
    LEAF's are below ``data_dir/leaf`` as its scripts made them and are never downloaded. The others are below
    ``data_dir`` in torchvision's layout and are downloaded on first use where there is a network.
    Arrays are read-only.
    """
    data_dir = bounds.inside(Path(data_dir).expanduser(), "data-dir")
    data = data or DataSettings()
    holdout = Holdout(data.test_share, seed, data.keeps_owners)

    def read() -> Dataset:
        if kind_of(name):
            form = images or ImagesSettings()
            return read_user_data(name, data_dir, form, data, holdout, bounds)
        info = describe(name, images)
        if name not in NAMES and images is not None:
            return read_central(info, images, data_dir, holdout, bounds)
        return _load(info, data_dir, bounds)

    own = () if name in NAMES else (data, holdout)
    return _once((name, data_dir, images, bounds, *own), read)


def load_site(
    name: str,
    images: ImagesSettings,
    folder: Path,
    keep: Path | None = None,
    data: DataSettings | None = None,
    *,
    private: bool = False,
) -> Dataset:
    """Return a site's own folder of images, or table, as the run's data set, without a test split, once per process."""
    if data is not None and data.columns:
        return _once(
            (name, folder, images, data, keep, private),
            lambda: read_site_table(images, data, folder, keep, private=private),
        )
    require_own(name)
    info = describe(name, images)
    return _once((name, folder, images, keep), lambda: read_site(info, images, folder, keep))


def require_own(name: str) -> None:
    """Refuse a data set of which no site can have files of its own: DataError."""
    if name in NAMES or kind_of(name):
        raise DataError(
            f"a site's own folder needs a data set that is a folder of images, which {name} is not: choose "
            "dataset=images, or one of conf/dataset with a section `images`; its own table (data='/abs/site.csv') "
            "needs data.columns, data.label and images.classes"
        )


def clear_cache() -> None:
    """Have data read again from now on: between two runs of a process they may change."""
    global _generation
    _generation += 1
    _loaded.clear()


def cache_generation() -> int:
    """Return how often that was: what was made of data before is another than what is made of them now."""
    return _generation


def _once(key: Hashable, read: Callable[[], Dataset]) -> Dataset:
    with _lock:
        if key not in _loaded:
            _loaded[key] = found = read()
            if found.info.name not in NAMES and found.narrow:
                log.warning("%s: %s", found.info.name, found.narrow)
        return _loaded[key]


def _load(info: DatasetInfo, data_dir: Path, bounds: Bounds) -> Dataset:
    if info.name == "digits":
        train, test = read_digits()
        for array in (train.images, train.labels, test.images, test.labels):
            array.setflags(write=False)
        return Dataset(info, train, test, checksum_of(train, test))

    source = SOURCES[info.name]
    for path in source.paths(data_dir):
        bounds.inside(path, f"a file of {info.name}")

    def read_source() -> Contents:
        if isinstance(source, DownloadSource):
            ensure_files(info.name, source, data_dir, bounds)
        return Contents(*source.splits(data_dir))

    roots = store_roots(data_dir, bounds=bounds)
    stored = shared_store(info.name, roots, source.fingerprint(data_dir), read_source)
    for split in (stored.train, stored.test):
        if split.images.shape[1:] != info.shape:
            raise DataError(
                f"{info.name} below {data_dir} has images of shape {split.images.shape[1:]}, not "
                f"{info.shape}"
            )
    return stored.described(info)
