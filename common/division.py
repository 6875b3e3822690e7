"""Who holds what of a run's data: the data set, what the server holds back, and each site's part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.config.resolved import Config
from common.data.division.partitions import lacking, partition
from common.data.division.stratify import Parts, subset, validation_split
from common.data.features import Extractor
from common.data.folders.folder import list_split, site_split
from common.data.loading import load, load_site
from common.data.published.catalogue import NAMES, describe
from common.data.store import store_roots
from common.data.user.rows import check_reach, info_of_columns, read_rows
from common.draws.seeding import derive
from common.errors import DataError, FederationError
from common.learning.run import Run
from common.samples.dataset import Dataset, DatasetInfo, Labels
from common.settings.columns import agreed_columns
from common.settings.sections import FUNCTION, kind_of
from common.sites import folder_sites
from common.specs.updates import OTHER_DATA
from common.storage.limits import ANYWHERE, Bounds

Indices = NDArray[np.int64]

SITE_VALIDATION = "site-validation"
"""The purpose by which a site's part of the validation split is drawn."""


@dataclass(frozen=True, eq=False)
class Division:
    """Known to those alone who hand out data: the apps, and what a person looks at it with."""

    config: Config
    bounds: Bounds = ANYWHERE

    @cached_property
    def run(self) -> Run:
        """The data set as a method knows it; only user data are read for it. DataError if there is no such data set."""
        return Run(self.config, self.extractor.described if self.extractor else self._info)

    @property
    def _info(self) -> DatasetInfo:
        config = self.config
        if config.data.columns:
            return info_of_columns(config.images, config.data)
        own = kind_of(config.dataset)
        return self._images.info if own else describe(config.dataset, config.images)

    @property
    def _images(self) -> Dataset:
        config = self.config
        places = config.data_dir, config.images, config.data
        return load(config.dataset, *places, config.seed, self.bounds)

    @cached_property
    def extractor(self) -> Extractor | None:
        """The extractor of rows from images, for methods that learn from rows."""
        return (
            Extractor(self.config, self._info, self.bounds) if self.config.features.name else None
        )

    @cached_property
    def _loaded(self) -> Dataset:
        if self.extractor is None:
            return self._images
        roots = store_roots(self.config.data_dir, bounds=self.bounds)
        return self.extractor.of(self._images, roots)

    @property
    def dataset(self) -> Dataset:
        """The data set, loaded once a process where something needs it, or raise DataError."""
        config, dataset = self.config, self._loaded
        if self.judged and not len(dataset.test):
            where = config.images.folder or dataset.info.name
            put = "put some into test/<class>/ there or " if config.images.folder else ""
            hold = "hold some out by data.test_share=0.2"
            if config.data.test_share:  # and each class has one example, or one group
                hold = "bring two of a class at least, or two groups, so that data.test_share can hold one out"
            raise DataError(
                f"evaluation.on={config.evaluation.on} needs test images, of which {where} has none: {put}{hold}, or "
                "set evaluation.on=none"
            )
        return dataset

    @property
    def checksums(self) -> dict[str, str]:
        """The checksums of all that a simulation reads: of sites' folders by site, of the set itself by ""."""
        folders = {name: held.checksum for name, held in self.site_datasets.items()}
        central = {"": self.dataset.checksum} if self.judged or not folders else {}
        return {**folders, **central}

    @property
    def judged(self) -> bool:
        """Whether the server evaluates, for which it reads the set."""
        return self.config.evaluation.on in ("server", "both")

    @property
    def site_datasets(self) -> dict[str, Dataset]:
        """The simulated sites' own folders or tables by site, none of a divided set; DataError if one is no use."""
        places, kept = self.config.site_places, self.config.data_dir
        named = self.config.images.sites or self.config.data.sites
        return {
            name: self.site_dataset(place, kept)
            for name, place in zip(folder_sites(named), places, strict=True)
        }

    def site_dataset(self, folder: Path, keep: Path | None) -> Dataset:
        """Return a site's own images or rows, all for training; ``keep`` is where the site keeps its files."""
        config = self.config
        images = load_site(
            config.dataset, config.images, folder, keep, config.data, private=config.private
        )
        if self.extractor is None:
            return images
        return self.extractor.of(images, store_roots(keep) if keep else store_roots())

    @cached_property
    def _cut(self) -> tuple[Indices, Indices]:
        config, dataset = self.config, self.dataset
        check_reach(dataset, config.data.scale)
        strata = self.run.task.strata(dataset.train)
        used = subset(strata, config.data.images, config.seed)
        groups = self.groups(dataset, used)
        least = 1 if self.run.task.by_class else 0
        share = 0.0 if config.data.validated_at_sites else config.data.validation
        rest, held = validation_split(strata[used], share, config.seed, groups, least)
        return used[rest], used[held]

    def groups(self, dataset: Dataset, positions: Indices) -> Labels | None:
        """Return the groups of samples of ``dataset``'s training split, which no cut divides; None if any may.

        A published set's writers and users are divided, as its papers do it, but by ``partition.kind=natural``; so
        are owners that ``data.owner`` alone names.
        """
        divided = self.config.dataset in NAMES or not self.config.data.keeps_owners
        owners = None if divided else dataset.train.owners
        return None if owners is None else owners[positions]

    @property
    def learned(self) -> Indices:
        """Positions in the training split that the sites share out among them."""
        return self._cut[0]

    @property
    def validation(self) -> Indices:
        """Positions in the training split that the server holds back for tuning; none where the sites do."""
        return self._cut[1]

    @property
    def gaps(self) -> list[str]:
        """Sentences on classes without any example to evaluate a model by; empty if the task has no classes."""
        train, unit, classes = self.dataset.train, self.run.info.unit, self.run.info.classes
        if not self.run.task.by_class:
            return []
        sentences = [
            lacking(self.dataset.test.labels, classes, f"test {unit}"),
            lacking(train.labels[self.validation], classes, f"validation {unit}"),
        ]
        return [sentence for sentence in sentences if sentence]

    @property
    def shared_groups(self) -> list[str]:
        """A sentence on groups that more than one of the simulated sites' own sets has, if there are any."""
        images, data, held = self.config.images, self.config.data, Counter[str]()
        for folder in images.site_folders if images.group else ():
            split = site_split(folder, images)
            files = list_split(folder, split, images.names, images.group).files
            held.update({file.group for file in files})
        for file in data.site_files if data.group else ():
            columns = agreed_columns(data.columns)
            held.update({*read_rows(file, data.label, data.group, columns=columns)["train_groups"]})
        both = sum(sites > 1 for sites in held.values())
        sentence = f"{both} of {len(held)} groups have their name at more than one site: "
        return [f"{sentence}what is one group, such as a patient, belongs at one"] if both else []

    def held_out(self, clients: int) -> dict[str, Indices]:
        """Return how many samples of each class each of the simulated sites holds out, by site, int64 [classes].

        Empty if the sites do not evaluate by class: if they hold none out, and in a private run.
        """
        config, classes = self.config, len(self.run.info.classes)
        if not config.data.held_by_sites or config.private or not self.run.task.by_class:
            return {}
        parts = [(name, own, np.arange(len(own.train))) for name, own in self.site_datasets.items()]
        if not parts:
            drawn = enumerate(self.partition(clients))
            parts = [(f"partition-{i}", self.dataset, part) for i, part in drawn]
        return {
            site: np.bincount(own.train.labels[self.share(site, own, part)[1]], minlength=classes)
            for site, own, part in parts
        }

    def share(self, site: str, dataset: Dataset, indices: Indices) -> tuple[Indices, Indices]:
        """Split a site's positions in ``dataset``'s training split into those to learn from and those held out."""
        data = self.config.data
        purpose = SITE_VALIDATION if data.validated_at_sites else "site-holdout"
        seed = derive(self.config.seed, purpose, site)
        strata = self.run.task.strata(dataset.train)[indices]
        groups = self.groups(dataset, indices)
        kept, held = validation_split(strata, data.held_by_sites, seed, groups)
        return indices[kept], indices[held]

    def partition(self, clients: int) -> Sequence[Indices]:
        """Return each simulated site's positions in the training split, drawn once a process."""
        return _partition(self, clients)


def unheld(info: DatasetInfo, held: Mapping[str, Indices]) -> list[str]:
    """Return a sentence on the classes of which no site holds out an example, if there are any."""
    counts = sum(held.values(), np.zeros(len(info.classes), np.int64))
    there = np.repeat(np.arange(len(counts)), counts)
    sentence = lacking(there, info.classes, f"{info.unit} held out at the sites")
    return [sentence] if sentence else []


def require_same_data(dataset: str, initial: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Raise FederationError for data of another checksum than the run's initial data; an empty one is unknown."""
    for name, was in initial.items():
        now, of = found.get(name, ""), f" of {name}" if name else ""
        if was and now and was != now:
            mend = "restore the earlier data, or start a new run"
            if kind_of(dataset) == FUNCTION:
                mend = f"{dataset.partition(':')[2]} gave other data than before: fix its seed"
            raise FederationError(f"{OTHER_DATA} (checksum{of} {was[:16]}, now {now[:16]}): {mend}")


@lru_cache(maxsize=4)
def _partition(division: Division, clients: int) -> Parts:
    positions, held = division._cut
    split, config = division.dataset.train, division.config
    after = config.data.validation_cut == "after"
    if after:
        positions = np.sort(np.concatenate([positions, held]))
    groups = division.groups(division.dataset, positions)
    parts = partition(
        division.run.task.strata(split)[positions],
        clients,
        config.partition,
        config.seed,
        None if split.owners is None else split.owners[positions],
        together=groups is not None,
    )
    parts = parts.within(positions)
    if not after:
        return parts
    parts = parts.without(held)
    if not all(map(len, parts)):
        raise DataError(
            f"data.validation_cut=after leaves a site without {division.run.info.unit}: all that it has is held back; "
            "set data.validation_cut=before, raise partition.min_size, or lower data.validation or federation.sites"
        )
    return parts
