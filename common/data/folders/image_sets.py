"""A data set of image files, decoded once into the store that every process shares."""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from common.data.division.stratify import group_ids, on_both_sides, warn_of_shared
from common.data.folders.decode import Unreadable, dtype_of, read_image
from common.data.folders.folder import (
    PLAIN,
    TRAIN,
    Holdout,
    Listing,
    account,
    by_reason,
    list_split,
    printable,
    split_folders,
    with_test,
)
from common.data.folders.pictures import most_pixels
from common.data.store import Contents, Stored, digest_of, shared_store, store_roots
from common.errors import DataError
from common.samples.dataset import Dataset, DatasetInfo, Skipped, Split
from common.settings.images import ImagesSettings
from common.storage.limits import ANYWHERE, Bounds, look_at_the_clock

log = logging.getLogger("flwr")

_DECODER = 2  # another number makes every store be built again


def read_central(
    info: DatasetInfo,
    settings: ImagesSettings,
    data_dir: Path,
    holdout: Holdout,
    bounds: Bounds = ANYWHERE,
) -> Dataset:
    """Return the data set below ``images.folder``: its training and its test split.

    A folder with a test split alone has no training images; one without a test split gets one by ``holdout``.
    """
    if not settings.folder:
        raise DataError(
            f"dataset={info.name} names no folder: set images.folder to the one that holds train/<class>/* and "
            "test/<class>/*; where every site has images of its own, set evaluation.on=sites or none"
        )
    folder = bounds.inside(data_dir / Path(settings.folder).expanduser(), "images.folder")
    bounds.links_inside(folder, "images.folder")
    train, test = split_folders(folder, settings.names)
    listings = [
        list_split(folder, split, settings.names, settings.group) if split else Listing()
        for split in (train, test)
    ]
    shared_groups = on_both_sides(*((file.group for file in one.files) for one in listings))
    warn_of_shared(*shared_groups, folder)
    name, roots = (
        _store_name(folder, "central", settings),
        store_roots(data_dir, bounds=bounds),
    )
    stored = _stored(folder, name, listings, settings, roots)
    for split, held in ((train, stored.train), (test, stored.test)):
        if split and not len(held):
            raise _no_images(folder / split)
    if train:
        held_classes = set(stored.train.labels.tolist())
        absent = [name for label, name in enumerate(settings.names) if label not in held_classes]
        if absent:
            log.warning("%s has no image of %s", folder / train, ", ".join(absent))
    return _dataset(info, with_test(stored, name, roots, holdout, _mode(folder)))


def read_site(
    info: DatasetInfo, settings: ImagesSettings, folder: Path, keep: Path | None
) -> Dataset:
    """Return a site's own images, ``<folder>/<class>/*`` or ``<folder>/train/<class>/*``, all for training."""
    folder = folder.resolve()
    if not folder.is_dir():
        raise DataError(
            f"there is no folder {folder}: name the one that holds <class>/*",
            told="the folder of images that this site's node config names is not there",
        )
    listing = list_split(folder, site_split(folder, settings), settings.names, settings.group)
    roots = store_roots(keep) if keep else store_roots()
    name = _store_name(folder, "site", settings)
    stored = _stored(folder, name, [listing, Listing()], settings, roots)
    if not len(stored.train):
        raise _no_images(folder)
    return _dataset(info, stored)


def site_split(folder: Path, settings: ImagesSettings) -> str:
    """Return where in a site's own folder the classes' folders lie."""
    nested = TRAIN not in settings.names and (folder / TRAIN).is_dir()
    return TRAIN if nested else PLAIN


def _dataset(info: DatasetInfo, stored: Stored) -> Dataset:
    return Dataset(
        info, stored.train, stored.test, stored.checksum, stored.skipped, store=stored.folder
    )


def _no_images(folder: Path) -> DataError:
    return DataError(
        f"{folder} holds no image that can be used: put some into {folder}/<class>/",
        told="the folder of images holds none that can be used",
    )


def _form(settings: ImagesSettings) -> dict[str, object]:
    form = settings.model_dump(include={"classes", "size", "channels", "bits"})
    return form | settings.model_dump(
        include={"page", "white", "black", "group"}, exclude_defaults=True
    )


def _store_name(folder: Path, role: str, settings: ImagesSettings) -> str:
    place = digest_of([role, str(folder), _form(settings)])
    shape = f"{settings.channels}x{settings.size}x{settings.size}"
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', folder.name)[:40]}-{shape}-{place[:8]}"


def _mode(folder: Path) -> int:
    """Return who may enter a store: no more than may enter the folder itself."""
    return folder.stat().st_mode & 0o777 | 0o700


def _stored(
    folder: Path,
    name: str,
    listings: Sequence[Listing],
    settings: ImagesSettings,
    roots: Sequence[Path],
) -> Stored:
    """Return the folder's store, built if there is none; refuse a folder with too much that is not an image."""
    fingerprints = [listing.fingerprint() for listing in listings]
    source = digest_of([_DECODER, _form(settings), *fingerprints])

    def read_source() -> Contents:
        scratch = next((root for root in roots if os.access(root, os.W_OK)), None)
        return _decoded(folder, listings, settings, scratch)

    stored = shared_store(name, roots, source, read_source, mode=_mode(folder))
    _tolerate(folder, stored, settings.max_bad)
    return stored


def _decoded(
    folder: Path, listings: Sequence[Listing], settings: ImagesSettings, scratch: Path | None
) -> Contents:
    files = sum(len(listing.files) for listing in listings)
    log.info("%s: reading %d images", folder, files)
    splits, skipped = [], [left for listing in listings for left in listing.skipped]
    for listing in listings:
        split, unreadable = decode_listing(folder, listing, settings, scratch)
        splits.append(split)
        skipped += unreadable
    for line in account(skipped):
        log.warning("not used below %s: %s", folder, line)
    return Contents(splits[0], splits[1], tuple(skipped))


def decode_listing(
    folder: Path, listing: Listing, settings: ImagesSettings, scratch: Path | None
) -> tuple[Split, list[Skipped]]:
    """Decode every file of a listing, one at a time, into a temporary file below ``scratch`` that is then mapped."""
    shape, dtype = (settings.channels, settings.size, settings.size), dtype_of(settings)
    labels: list[int] = []
    groups: list[str] = []
    skipped: list[Skipped] = []
    with tempfile.TemporaryFile(dir=scratch) as spool:
        for file in listing.files:
            look_at_the_clock()
            try:
                spool.write(read_image(folder / file.path, settings, most_pixels()).tobytes())
                labels.append(file.label)
                groups.append(file.group)
            except Unreadable as error:
                skipped.append(Skipped(printable(file.path), str(error)))
        spool.flush()
        whole = (len(labels), *shape)
        images = np.memmap(spool, dtype, "r", shape=whole) if labels else np.empty(whole, dtype)
    owners = group_ids(groups) if settings.group else None
    return Split(images, np.array(labels, dtype=np.int64), owners), skipped


def _tolerate(folder: Path, stored: Stored, max_bad: float) -> None:
    """Refuse a folder of which more than ``max_bad`` cannot be used."""
    bad = len(stored.skipped)
    files = bad + len(stored.train) + len(stored.test)
    if bad > max_bad * files:
        raise DataError(
            f"{bad} of {files} files below {folder} cannot be used ({by_reason(stored.skipped)}), more than "
            f"images.max_bad={max_bad:g} allows: mend or remove them, or raise it; `nectar data` names them",
            told=f"more of the folder's files cannot be used than images.max_bad={max_bad:g} allows",
        )
