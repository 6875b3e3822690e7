"""``load``: a data set by name, once a process."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from common.data.catalogue import describe
from common.data.dataset import Dataset, DatasetInfo, Split, array_digest, combined_checksum
from common.data.digits import read_digits
from common.data.download import ensure_files
from common.data.sources import SOURCES
from common.data.store import shared
from common.errors import DataError

STORE_FOLDER = "nectar-store"

_loaded: dict[tuple[str, Path], Dataset] = {}
_lock = threading.Lock()  # in-process engines may run devices in threads


def load(name: str, data_dir: Path) -> Dataset:
    """Return a data set, loaded once per process from a store that processes share.

    digits is embedded. The others lie below ``data_dir`` in torchvision's layout and are
    downloaded on first use where there is a network. Arrays are read-only.

    Args:
        name: one of ``catalogue.NAMES``.
        data_dir: the data directory; without permission to write there, the store goes to the
            user's cache.

    Raises:
        DataError: the name is unknown, or a file is missing, truncated or damaged; it is named.
    """
    info = describe(name)
    key = (name, Path(data_dir).expanduser().resolve())
    with _lock:
        if key not in _loaded:
            _loaded[key] = _load(info, key[1])
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

    def read_source() -> tuple[Split, Split]:
        ensure_files(info.name, source, data_dir)
        return source.read(data_dir, source.files)

    stored = shared(info.name, _store_roots(data_dir), source.fingerprint(), read_source)
    for split in (stored.train, stored.test):
        if split.images.shape[1:] != info.shape:
            raise DataError(
                f"{info.name} below {data_dir} has images of shape {split.images.shape[1:]}, not "
                f"{info.shape}"
            )
    return Dataset(info, stored.train, stored.test, stored.checksum)


def _store_roots(data_dir: Path) -> list[Path]:
    """Return where stores may lie: below the data directory, else in the user's cache."""
    roots = [data_dir / STORE_FOLDER]
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a container's user without a home
        return roots
    return [*roots, cache / "nectar" / STORE_FOLDER]
