"""Which pictures of a folder a run learned from: its split, made again from the files, the classes and the seed.

What an export says of the split names no picture: four numbers, and the checksum of the whole set, by which a folder is
known to hold that set and no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from common.config.resolved import Config
from common.data.division.partitions import partition
from common.data.division.stratify import Indices, subset, validation_split
from common.data.folders.folder import (
    PLAIN,
    TEST,
    TRAIN,
    Holdout,
    Listing,
    decode_listing,
    list_split,
    printable,
    split_folders,
    test_split,
)
from common.data.published.catalogue import NAMES
from common.data.store import checksum_of
from common.division import SITE_VALIDATION
from common.draws.seeding import derive
from common.errors import DataError
from common.samples.dataset import Split
from common.settings.images import ImagesSettings
from common.settings.sections import PartitionSettings, kind_of
from common.sites import partition_name

HELD_OUT, VALIDATION, TRAINED = "held out", "validation", "trained"


def split_settings(config: Config) -> dict[str, Any] | None:
    """Return what, beside seed and classes, decides how a run divided its pictures; None of a published set."""
    if config.dataset in NAMES:
        return None
    data, more = config.data, dict[str, Any]()
    if data.validated_at_sites:
        more = {"sites": config.federation.sites, "partition": config.partition.model_dump()}
    if config.images.group:
        more["group"] = config.images.group
    return {
        "folder": is_folder(config),
        "test_share": data.test_share,
        "validation": data.validation,
        "images": data.images,
        **more,
    }


def is_folder(config: Config) -> bool:
    """Return whether the run learned from one folder of images, which is there to be scored."""
    return bool(config.images.folder) and not config.images.sites and not kind_of(config.dataset)


def form_of(given: Mapping[str, Any], **more: Any) -> ImagesSettings:
    """Return the form of a picture that ``given``, the input of a model.json, describes: what the decoder must know."""
    channels, side, _ = given["shape"]
    bits = 16 if given["scale"] > 255 else 8
    kept = {key: given[key] for key in ("page", "white", "black") if key in given}
    return ImagesSettings.model_validate(
        {"size": side, "channels": channels, "bits": bits, **kept, **more}
    )


@dataclass(frozen=True)
class RunSplit:
    """What a model.json says of the run's pictures and their division.

    Parameters
    ----------
    checksum : str
        The whole set's.
    settings : mapping
        As ``split_settings`` returned them.
    images : ImagesSettings
        The classes in the order of their labels, and the form of an image.
    """

    checksum: str
    seed: int
    settings: Mapping[str, Any]
    images: ImagesSettings

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> RunSplit | None:
        """Return what ``about`` says; None if it says nothing, as an earlier release's or one of another set's."""
        run = about["run"]
        if not (run.get("split") or {}).get("folder") or not run["data"]:
            return None
        form = form_of(
            about["input"], classes=list(about["classes"]), group=run["split"].get("group", "")
        )
        return cls(run["data"], run["seed"], run["split"], form)

    def parts(self, folder: Path) -> dict[str, str] | None:
        """Return each picture's part by its path below ``folder``; None if these are not the run's pictures.

        ``folder`` holds the classes' folders: the run's own, or its ``train`` or ``test`` below it.
        """
        folder = folder.absolute()
        within = folder.name if folder.name in (TRAIN, *TEST) else ""
        for root, place in ((folder, PLAIN), *([(folder.parent, within)] if within else [])):
            found = self._parts_below(root)
            if found is not None and place in found:
                return {
                    Path(path).relative_to(place).as_posix(): part for path, part in found[place]
                }
        return None

    def _validation(self, learned: Split) -> Indices:
        """Return the positions that the server held back for tuning, or each site of its own."""
        share, own = float(self.settings["validation"]), self.settings.get("partition")
        labels, groups = learned.labels, learned.owners
        if own is None:
            return validation_split(labels, share, self.seed, groups, least=1)[1]
        how, number = PartitionSettings.model_validate(own), int(self.settings["sites"])
        parts = partition(labels, number, how, self.seed, groups, whole=groups is not None)
        held = []
        for index, part in enumerate(parts):
            seed = derive(self.seed, SITE_VALIDATION, partition_name(index))
            theirs = learned.at(part)
            held.append(part[validation_split(theirs.labels, share, seed, theirs.owners)[1]])
        return np.concatenate(held)

    def _parts_below(self, root: Path) -> dict[str, list[tuple[str, str]]] | None:
        """Return of each folder below ``root`` the pictures' paths and parts, if this is the run's set."""
        try:
            places = split_folders(root, self.images.names)
            (train, seen), (test, tests) = read_folder(root, places, self.images)
        except DataError:
            return None
        kept = np.arange(len(train))
        parts = np.full(len(train), HELD_OUT, dtype=object)
        if not len(test):
            share = Holdout(float(self.settings["test_share"]), self.seed)
            if share.share:
                kept, cut = test_split(train, share)
                test = Split(train.images[cut], train.labels[cut])
        learned = train.at(kept)
        if checksum_of(learned, test) != self.checksum:
            return None
        used = subset(learned.labels, int(self.settings["images"]), self.seed)
        parts[kept[used]] = TRAINED
        bare = replace(learned, images=np.empty(len(learned)))  # a cut goes by labels and groups
        parts[kept[used[self._validation(bare.at(used))]]] = VALIDATION
        by_place = {places[0]: list(zip(seen, parts.tolist(), strict=True))} if places[0] else {}
        return by_place | ({places[1]: [(path, HELD_OUT) for path in tests]} if places[1] else {})


def read_folder(
    folder: Path, places: tuple[str | None, str | None], settings: ImagesSettings
) -> list[tuple[Split, list[str]]]:
    """Return the splits that are at ``places`` below ``folder``, each with its pictures' paths, without a store.

    Raises
    ------
    DataError
        it holds a class that is not in the list, or cannot be read.
    """
    found = []
    for place in places:
        listing = list_split(folder, place, settings.names, settings.group) if place else Listing()
        split, unreadable = decode_listing(folder, listing, settings, None)
        left = {skipped.path for skipped in unreadable}
        found.append((split, [f.path for f in listing.files if printable(f.path) not in left]))
    return found
