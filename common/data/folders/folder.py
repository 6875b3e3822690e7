"""A folder of images: which files are whose class, which are held out; decoded once into a store for all."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from common.data.division.stratify import (
    Indices,
    group_ids,
    on_both_sides,
    validation_split,
    warn_of_shared,
)
from common.data.folders.decode import (
    ENDINGS,
    HEIF_ENDINGS,
    Unreadable,
    dtype_of,
    most_pixels,
    read_image,
    reads_heif,
)
from common.data.store import Contents, Stored, digest_of, shared_store, store_roots
from common.draws.seeding import derive
from common.errors import DataError, nearest
from common.samples.dataset import Dataset, DatasetInfo, Skipped, Split
from common.settings.images import ImagesSettings, class_name
from common.storage.limits import ANYWHERE, Bounds, check_deadline

log = logging.getLogger("flwr")

TRAIN = "train"
#: the names under which a test split may have next to train/; the first that exists is taken
TEST = ("test", "val", "validation")

_HIDDEN = {"thumbs.db", "desktop.ini", "__macosx"}
_NAMED = 5


@dataclass(frozen=True)
class ImageFile:
    """A file that should be an image: its path below the folder, its label, and what changes when it does."""

    path: str
    label: int
    size: int
    modified: int
    group: str = ""


@dataclass(frozen=True)
class Listing:
    """A split's files in the order of their labels and names, and those left out."""

    files: tuple[ImageFile, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    def fingerprint(self) -> str:
        """Return what distinguishes this listing from one of other or changed files."""
        lines = [f"{f.path}\0{f.label}\0{f.size}\0{f.modified}" for f in self.files]
        lines += [f"{skipped.path}\0{skipped.reason}" for skipped in self.skipped]
        return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


#: what ``images.group`` is for pictures in a folder per group, below their class's
FOLDER = "folder"

#: the training split of a folder that holds the classes' folders directly
PLAIN = "."


def split_folders(folder: Path, classes: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the names of the training and of the test folder below ``folder``, None for one that is not there.

    A folder without either that holds folders of ``classes`` is the training folder itself.
    """
    if not folder.is_dir():
        raise DataError(
            f"there is no folder {folder}: set images.folder to the one that holds {TRAIN}/<class>/* and "
            f"{TEST[0]}/<class>/*, or <class>/* alone (a relative one is below data-dir)"
        )
    parts = [p for p in (TRAIN, *TEST) if p not in classes and (folder / p).is_dir()]
    if not parts:
        if not {class_name(entry.name) for entry in entries(folder)} & {*classes}:
            raise DataError(
                f"{folder} has neither a folder {TRAIN} nor one named {', '.join(TEST[:-1])} or {TEST[-1]}, nor one "
                f"of a class ({', '.join(classes)}): put the images into {TRAIN}/<class>/ and {TEST[0]}/<class>/, or "
                "into <class>/"
            )
        return PLAIN, None
    return TRAIN if TRAIN in parts else None, next((p for p in parts if p != TRAIN), None)


def list_split(folder: Path, split: str, classes: Sequence[str], group: str = "") -> Listing:
    """List ``<folder>/<split>/<class>/*`` without opening a file; paths are relative to ``folder``.

    Hidden files are passed over. Symbolic links count as what they lead to. ``group`` is ``images.group``.
    """
    files: list[ImageFile] = []
    skipped: list[Skipped] = []
    found: dict[str, list[Path]] = {}
    known = frozenset(classes)
    for entry in entries(folder / split):
        if not entry.is_dir():
            skipped.append(_skip(folder, entry, "is outside the classes' folders"))
            continue
        name = class_name(entry.name)
        if name not in known:
            raise _unknown_class(entry, name, classes)
        found.setdefault(name, []).append(entry)
    for label, name in enumerate(classes):
        folders = found.get(name, [])
        if len(folders) > 1:
            log.warning(
                "%s: %d folders are called %s, in other Unicode or with blanks: they are read as one class",
                *(folder / split, len(folders), name),
            )
        for entry in (entry for each in folders for entry in entries(each)):
            for path, reason in _candidates(entry, nested=group == FOLDER):
                named, reason = ("", reason) if reason else _group_of(entry, path, group)
                if reason:
                    skipped.append(_skip(folder, path, reason))
                    continue
                seen, place = path.stat(), path.relative_to(folder).as_posix()
                files.append(ImageFile(place, label, seen.st_size, seen.st_mtime_ns, named))
    return Listing(tuple(files), tuple(skipped))


def entries(folder: Path) -> list[Path]:
    """Return the entries of ``folder``, sorted by name, without the files of operating systems."""
    try:
        found = sorted(folder.iterdir(), key=lambda path: os.fsencode(path.name))
    except OSError as error:
        raise DataError(f"the folder {folder} cannot be read ({error.strerror})") from error
    return [p for p in found if not p.name.startswith(".") and p.name.lower() not in _HIDDEN]


def _group_of(entry: Path, path: Path, rule: str) -> tuple[str, str]:
    """Return the name of the group of a file behind ``entry`` of a class's folder, and why it has no group."""
    if not rule:
        return "", ""
    if rule == FOLDER:
        if not entry.is_dir():
            return "", "is in no group's folder (images.group=folder)"
        return unicodedata.normalize("NFC", entry.name), ""
    found = _named_by(rule).fullmatch(path.name)
    if found is None:
        return "", "its name has no group (images.group)"
    return unicodedata.normalize("NFC", found[1]), ""


@cache
def _named_by(rule: str) -> re.Pattern[str]:
    """Return the pattern of file names that ``images.group`` describes, with the group's name in parentheses."""
    parts = [re.escape(part) for part in re.split(r"(\*|\{group\})", rule)]
    wild = {r"\*": ".*?", r"\{group\}": "(.+?)"}
    return re.compile("".join(wild.get(part, part) for part in parts), re.DOTALL)


def _candidates(entry: Path, *, nested: bool = False) -> Iterator[tuple[Path, str]]:
    """Yield the files behind an entry of a class's folder, each with the reason to skip it (or nothing)."""
    if entry.is_dir():
        for inner in entries(entry) if not entry.is_symlink() else ():
            for path, reason in _candidates(inner, nested=nested):
                yield path, reason if nested else "is in a folder below its class's"
        return
    if not entry.is_file():
        yield entry, "no file that can be read"
    elif entry.suffix.lower() in HEIF_ENDINGS and not reads_heif():
        yield entry, "HEIC: pip install pillow-heif reads it"
    elif entry.suffix.lower() not in (*ENDINGS, *HEIF_ENDINGS):
        yield entry, f"unknown ending {entry.suffix!r}"[:40]
    else:
        yield entry, "" if entry.stat().st_size else "empty"


def _skip(folder: Path, path: Path, reason: str) -> Skipped:
    return Skipped(printable(path.relative_to(folder).as_posix()), reason)


def printable(name: str) -> str:
    """Return a file's name with what no text file can hold written as escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _unknown_class(entry: Path, name: str, classes: Sequence[str]) -> DataError:
    hint = f" (the nearest is {near})" if (near := nearest(name, classes)) else ""
    return DataError(
        f"{printable(str(entry))} is a folder of no known class{hint}: images.classes has {', '.join(classes)}; "
        "rename or remove the folder, or give every site the longer list",
        reported="the folder of images holds a folder of a class that is not in images.classes: its owner renames or "
        "removes it, or every site is given the longer list",
    )


def skipped_summary(skipped: Sequence[Skipped], *, named: int = _NAMED) -> list[str]:
    """Return lines that name the first few files that are not used and count the rest by reason."""
    first, rest = [*skipped][:named], [*skipped][named:]
    lines = [f"{one.path}: {one.reason}" for one in first]
    if rest:
        lines.append(f"and {len(rest)} more ({by_reason(rest)})")
    return lines


def by_reason(skipped: Iterable[Skipped]) -> str:
    """Count reasons, the commonest first: ``"empty: 3, truncated: 1"``."""
    counts = Counter(sorted(one.reason for one in skipped))
    return ", ".join(f"{reason}: {count}" for reason, count in counts.most_common())


# ---- holdout -------------------------------------------------------------------------------------
# A test split for a set that brings none: a stratified share of its training images, drawn by the run's seed.

_CUT = 2  # another number makes every cut be made again


@dataclass(frozen=True)
class Holdout:
    """The share of training images that becomes a missing test split, the seed, and whether owners stay undivided."""

    share: float = 0.0
    seed: int = 0
    undivided: bool = True  # whether samples of one owner or group stay together


def with_test(
    stored: Stored, name: str, roots: Sequence[Path], holdout: Holdout, mode: int
) -> Stored:
    """Return ``stored`` with a test split: its own, else one cut off its training split, in a separate store."""
    if len(stored.test) or not holdout.share or not len(stored.train):
        return stored
    divided = [] if holdout.undivided else ["divided"]
    source = digest_of([_CUT, stored.checksum, holdout.share, holdout.seed, *divided])

    def cut() -> Contents:
        learned, held_out = (stored.train.at(part) for part in test_split(stored.train, holdout))
        held_out = Split(held_out.images, held_out.labels)  # without groups
        return Contents(learned, held_out, stored.skipped, stored.about)

    return shared_store(f"{name}-test-{source[:8]}", roots, source, cut, mode)


def test_split(train: Split, holdout: Holdout) -> tuple[Indices, Indices]:
    """Return the sorted positions of what stays to learn from and of what becomes the test split."""
    seed = derive(holdout.seed, "test")
    groups = train.owners if holdout.undivided else None
    return validation_split(train.labels, holdout.share, seed, groups, least=1)


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
            "test/<class>/*; where every site has its own images, set evaluation.on=sites or none"
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
    name, roots = _store_name(folder, "central", settings), store_roots(data_dir, bounds=bounds)
    stored = _stored(folder, name, listings, settings, roots)
    for split, held in ((train, stored.train), (test, stored.test)):
        if split and not len(held):
            raise _no_images(folder / split)
    if train:
        held_classes = set(stored.train.labels.tolist())
        absent = [name for label, name in enumerate(settings.names) if label not in held_classes]
        if absent:
            log.warning("%s has no image of %s", folder / train, ", ".join(absent))
    stored = with_test(stored, name, roots, holdout, _mode(folder))
    return stored.described(info)


def read_site(
    info: DatasetInfo, settings: ImagesSettings, folder: Path, keep: Path | None
) -> Dataset:
    """Return a site's own images, ``<folder>/<class>/*`` or ``<folder>/train/<class>/*``, all for training."""
    folder = folder.resolve()
    if not folder.is_dir():
        raise DataError(
            f"there is no folder {folder}: name the one that holds <class>/*",
            reported="the folder of images that this site's node config names is not there",
        )
    listing = list_split(folder, site_split(folder, settings), settings.names, settings.group)
    roots = store_roots(keep) if keep else store_roots()
    name = _store_name(folder, "site", settings)
    stored = _stored(folder, name, [listing, Listing()], settings, roots)
    if not len(stored.train):
        raise _no_images(folder)
    return stored.described(info)


def site_split(folder: Path, settings: ImagesSettings) -> str:
    """Return the folder of the classes' folders in a site's own folder."""
    nested = TRAIN not in settings.names and (folder / TRAIN).is_dir()
    return TRAIN if nested else PLAIN


def _no_images(folder: Path) -> DataError:
    return DataError(
        f"{folder} holds no image that can be used: put some into {folder}/<class>/",
        reported="the folder of images holds no usable image",
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
    """Return the folder's store, built if missing; refuse a folder with too much that is not an image."""
    fingerprints = [listing.fingerprint() for listing in listings]
    source = digest_of([_DECODER, _form(settings), *fingerprints])

    def read_source() -> Contents:
        log.info("%s: reading %d images", folder, sum(len(listing.files) for listing in listings))
        scratch = next((root for root in roots if os.access(root, os.W_OK)), None)
        decoded = [decode_listing(folder, listing, settings, scratch) for listing in listings]
        skipped = [left for listing in listings for left in listing.skipped]
        skipped += [left for _, unreadable in decoded for left in unreadable]
        for line in skipped_summary(skipped):
            log.warning("not used below %s: %s", folder, line)
        train, test = (split for split, _ in decoded)
        return Contents(train, test, tuple(skipped))

    stored = shared_store(name, roots, source, read_source, mode=_mode(folder))
    bad = len(stored.skipped)
    files = bad + len(stored.train) + len(stored.test)
    if bad > settings.max_bad * files:
        raise DataError(
            f"{bad} of {files} files below {folder} cannot be used ({by_reason(stored.skipped)}), more than "
            f"images.max_bad={settings.max_bad:g} allows: mend or remove them, or raise it; `nectar data` names them",
            reported=f"more of the folder's files cannot be used than images.max_bad={settings.max_bad:g} allows",
        )
    return stored


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
            check_deadline()
            try:
                spool.write(read_image(folder / file.path, settings, most_pixels()).tobytes())
                labels.append(file.label)
                groups.append(file.group)
            except Unreadable as error:
                skipped.append(Skipped(printable(file.path), str(error)))
        spool.flush()
        size = (len(labels), *shape)
        images = np.memmap(spool, dtype, "r", shape=size) if labels else np.empty(size, dtype)
    owners = group_ids(groups) if settings.group else None
    return Split(images, np.array(labels, dtype=np.int64), owners), skipped
