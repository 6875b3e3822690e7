"""A run as its report shows it: a record whose run may have failed early, with words for what it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import yaml
from pandas import DataFrame, Series, json_normalize

from common.code.imports import is_import_path
from common.config.resolved import Config
from common.config.text import dotted
from common.data.published.catalogue import describe
from common.division import Division
from common.errors import NectarError
from common.methods import is_foreign
from common.methods import section as section_of
from common.samples.dataset import DatasetInfo
from common.settings.base import Disclosure
from common.settings.sections import MEASURES
from common.sites import SUPERLINK
from common.storage.files import read_file
from nectar.records.real_images import Closest, closest_by_site
from nectar.records.record import RunRecord
from nectar.records.record_imports import NotNamed
from nectar.report.facts import Facts, facts_of
from nectar.text import number, total

#: settings that make no other experiment: places, names, and the seed, which groups repeat
_APART = ("seed", "experiment", "output-dir", "data-dir", "resume", "schema")

#: settings that a group's name lists at most
_MAX_NAMED = 3


@dataclass(frozen=True)
class View:
    """One run; every property is there for an unfinished run too, if only empty."""

    record: RunRecord

    PARTS: ClassVar = ("test", "sites", "validation")
    """Where figures are taken: on the server's test set, or on what sites, or a validation share, hold out."""

    @cached_property
    def config_text(self) -> str:
        """The text of config.yaml."""
        try:
            return read_file(self.record.directory / "config.yaml").decode()
        except (OSError, ValueError):
            return ""

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The recorded settings by dotted key."""
        try:
            tree = yaml.safe_load(self.config_text)
        except (yaml.YAMLError, ValueError, RecursionError):
            tree = None
        return dotted(tree) if isinstance(tree, Mapping) else {}

    @cached_property
    def config(self) -> Config | None:
        """The configuration, or None if this release cannot resolve it; NotNamed if it may not be imported."""
        try:
            return self.record.config
        except NotNamed:
            raise
        except NectarError:
            return None

    @property
    def method(self) -> str:
        """The method's name, or an import path that the record's policy lets be imported; NotNamed otherwise."""
        method = str(self.settings.get("method", "unknown"))
        if self.record.import_policy is not None and is_import_path(method):
            self.record.import_policy("method", method)
        return method

    @cached_property
    def foreign(self) -> bool:
        """Whether the method is a Flower strategy named by import path, which is there."""
        method = self.method
        try:
            section_of(method)  # a user's own may be in a folder that is not searched now
        except (NectarError, KeyError):
            return False
        return is_foreign(method)

    @cached_property
    def facts(self) -> Facts | None:
        """The method's facts; None for one that this release does not know, or that states nothing."""
        disclosed = Disclosure.read(self.record.provenance.get("privacy"))
        if disclosed is None:
            return None
        settings = self.config.settings if self.config is not None else None
        found = facts_of(self.method, disclosed, settings)
        if found is None:
            return None
        inner = self.config.inner if self.config is not None else {}
        facts = [
            facts_of(name, disclosed, own)
            for name, own in inner.items()
            if (disclosed := own.disclosure()) is not None
        ]
        return found.including([one for one in facts if one is not None])

    @property
    def measure(self) -> str:
        """What the run is judged by, one of ``MEASURES``."""
        measure = self.settings.get("evaluation.measure")
        return measure if measure in MEASURES else "accuracy"

    @property
    def above_untrained(self) -> list[int]:
        """The rounds whose test loss, if that is trained by, was above the one before training."""
        if self.config is not None and self.config.weighs_classes:
            return []
        rounds, losses = self.frame["round"], self.track("test.loss")
        before = losses[rounds == 0].min()
        return list(rounds[(rounds > 0) & (losses > before)])

    @property
    def display_name(self) -> str:
        """The method as a heading names it."""
        if self.facts is None or self.foreign:
            return self.method.rpartition(":")[2]
        return self.facts.display_name

    @property
    def done(self) -> str:
        """What was done with the images: ``sent``; ``made`` by the server where something else was sent."""
        return "made" if self.facts is not None and self.facts.carries else "sent"

    @property
    def title(self) -> str:
        """What was run."""
        dataset = self.settings.get("dataset", "unknown data")
        return f"{self.display_name} on {dataset}, seed {self.settings.get('seed', 'unknown')}"

    @cached_property
    def frame(self) -> DataFrame:
        """A row a line: round, bytes ``up`` and ``down`` of all sites, and figures such as ``test.accuracy``."""
        kept = ("round", *self.PARTS, "train")
        lines = [{key: line.get(key) for key in kept} for line in self.record.rounds]
        moved = [line.get("bytes", {}) for line in self.record.rounds]
        ways = {way: [total(each.get(way, {})) for each in moved] for way in ("up", "down")}
        return json_normalize(lines or [{"round": 0}])[: len(lines)].assign(**ways)

    def track(self, figure: str) -> Series:
        """Return a figure such as ``test.accuracy`` by line, NaN for a gap."""
        if figure not in self.frame:
            return Series(math.nan, index=self.frame.index)
        return self.frame[figure].map(number)

    def over_sites(self, figure: str) -> Series:
        """Return by line what the run's measure is over the sites: ``mean``, ``deviation`` or ``worst``."""
        return self.track(f"sites.{figure}").fillna(self.track(f"validation.{figure}"))

    def last_figures(self, part: str) -> dict[str, Any]:
        """Return what the last line has of one of ``PARTS``."""
        return dict((self.record.rounds[-1].get(part) if self.record.rounds else None) or {})

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The lines of rounds in which sites were asked."""
        return [line for line in self.record.rounds if line["round"] > 0]

    @property
    def reached(self) -> int:
        """The last round on record."""
        return int(self.record.rounds[-1]["round"]) if self.record.rounds else 0

    @property
    def matches(self) -> list[tuple[int, str, str, list[int]]]:
        """Who was helped by whom, in a method whose server matches sites: round, site, its helper, the classes."""
        return [
            (line["round"], site, found["helper"], found["classes"])
            for line in self.rounds
            for site, found in (line.get("notes") or {}).get("matches", {}).items()
        ]

    @property
    def unlisted(self) -> dict[str, Any]:
        """The sizes of sites that the record does not list one by one; empty if it does."""
        return dict(self.record.partition.get("unlisted") or {})

    @property
    def classes(self) -> list[str]:
        """The classes' names."""
        return [str(name) for name in self.record.partition.get("classes", [])]

    @property
    def engine(self) -> str:
        """What the run was of, one of :data:`common.sites.ENGINES`; empty if the record does not say."""
        return str(self.record.provenance.get("engine", ""))

    @property
    def simulated(self) -> bool:
        """Whether one machine held all the data."""
        if self.engine:
            return self.engine != SUPERLINK
        return bool(self.record.partition.get("simulated"))

    @cached_property
    def info(self) -> DatasetInfo | None:
        """The data set's description, or None if this release knows it not."""
        try:
            if self.config is None:
                return describe(str(self.settings["dataset"]))
            return Division(self.config).run.info
        except (NectarError, KeyError):
            return None

    @property
    def unit(self) -> str:
        """What the data set's samples are called."""
        return self.info.unit if self.info is not None else "images"

    @cached_property
    def closest(self) -> dict[str, Closest]:
        """How near each site's last images come to one of its real ones: sought once, used by all that show it."""
        return closest_by_site(self.record, self.info)

    @property
    def outcome(self) -> tuple[str, str]:
        """How it ended: one of ``good``, ``bad``, ``open``, and a sentence."""
        message = str(self.record.provenance.get("outcome", "running"))
        planned = self.settings.get("rounds", "an unknown number of")
        far = f"{self.reached} of {planned} rounds are on record"
        if best := self.record.result_round:
            far += f"; the result is round {best}, the best one (evaluation.patience)"
        if message == "completed":
            return "good", f"Completed: {far}."
        if message == "running" and self.record.outcome == "running":
            return "open", f"The run is in progress: {far}."
        if message == "running":
            again = f"`nectar run resume={self.record.id}` continues it"
            return "open", f"Killed, since no process writes it: {far}; {again}."
        if message == "interrupted":
            return "open", f"Interrupted: {far}."
        return "bad", f"{message[:1].upper()}{message[1:]}. {far}."


def judged_by(views: Sequence[View]) -> str:
    """Return where the accuracy of these runs was taken: ``test``, or ``sites`` where no server evaluated."""
    tested = any(view.track("test.accuracy").notna().any() for view in views)
    return "test" if tested else "sites"


def groups(views: Sequence[View]) -> dict[str, list[View]]:
    """Return runs of one configuration, which differ in the seed, under a distinct name.

    That is the method and the settings in which others that have them differ.
    """
    stated = [{"method": "", **view.settings} for view in views]
    settings = DataFrame(stated).map(str).drop(columns=[*_APART], errors="ignore")
    differing = [
        key
        for key in settings
        if key != "method" and len({str(one[key]) for one in stated if key in one}) > 1
    ]
    named: dict[str, list[View]] = {}
    for places in settings.groupby([*settings], sort=False).indices.values():
        first = views[places[0]]
        own = [f"{key}={first.settings[key]}" for key in differing if key in first.settings]
        shown = own[:_MAX_NAMED] + ["..."] * (len(own) > _MAX_NAMED)
        name = unique = ", ".join([first.display_name, *shown])
        number = 2
        while unique in named:
            unique, number = f"{name} ({number})", number + 1
        named[unique] = [views[place] for place in places]
    return named
