"""A run's record as its readers see it: report, export and compare look at runs through this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from common.config.loading import load
from common.config.own_parts import Judge
from common.config.resolved import Config
from common.errors import ConfigError, FederationError
from common.wire.synthetic_images import SyntheticImages
from nectar.records.record_shape import Line, Partition, Provenance, audit_of, require
from server_app.checkpoint import Checkpoint
from server_app.record import COMPLETED, PROVENANCE, Record
from server_app.synthetic_sets import load_sets


@dataclass(frozen=True)
class PastRun:
    """A run that is over, or was interrupted, or still goes on; nothing here writes.

    Parameters
    ----------
    judge : callable, optional
        Told of each import path that the record names before it is imported; None imports them all.
    """

    directory: Path
    judge: Judge | None = field(default=None, compare=False)

    @classmethod
    def open(cls, directory: Path, judge: Judge | None = None) -> PastRun:
        """Return the run recorded in ``directory``; what it names by import path is put before ``judge``.

        Raises
        ------
        ConfigError
            If it is no run's record.
        FederationError
            If a value of its provenance is not what a run writes.
        """
        run = cls(Path(directory).expanduser().absolute(), judge)
        require(Provenance, run.provenance, run.directory / PROVENANCE)
        return run

    @property
    def record(self) -> Record:
        """The record itself, for its paths."""
        return Record(self.directory)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """provenance.json: command, versions, source, hardware, outcome; ConfigError without this release's."""
        return self.record.required()

    @cached_property
    def partition(self) -> dict[str, Any]:
        """partition.json: classes, and each site's images, by class where the server knew them.

        Raises
        ------
        ConfigError
            If there is none that can be read.
        FederationError
            If a value of it is not what a run writes.
        """
        if (content := self.record.json("partition.json")) is None:
            raise ConfigError(f"{self.directory} has no readable partition.json")
        require(Partition, content, self.directory / "partition.json")
        return content

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, that of round 0 (before training) first.

        Raises
        ------
        FederationError
            If the file cannot be read, or a value of it is not what a run writes.
        """
        path, lines = self.directory / "metrics.jsonl", self.record.metrics()
        for number, line in enumerate(lines, 1):
            require(Line, line, path, f"line {number}")
        if len({len(line["test"]["per_class"]) for line in lines if _has_classes(line)}) > 1:
            raise FederationError(f"{path} is damaged: its rounds differ in the number of classes")
        return lines

    @cached_property
    def audit(self) -> dict[str, Any] | None:
        """audit-images.json, if `nectar audit images` was asked; FederationError if a value is not what it writes."""
        return audit_of(self.record)

    @cached_property
    def config(self) -> Config:
        """The configuration it ran with, resolved again from what the record states."""
        return load(self.provenance["run-config"], judge=self.judge)

    @property
    def completed(self) -> bool:
        """Whether it ran to its last round."""
        return bool(self.provenance.get("outcome") == COMPLETED)

    def checkpoint(self, *, best: bool = False) -> Checkpoint:
        """Return the newest checkpoint, or that of the round best on the validation share."""
        return Checkpoint.load(self.record.best if best else self.record.last)

    def synthetic(self, *, best: bool = False) -> tuple[int, dict[str, SyntheticImages]]:
        """Return the round and the sets that its sites sent, by site; (0, {}) if the method sends no images."""
        path = self.record.best_sets if best else self.record.last_sets
        return load_sets(path) if path.is_file() else (0, {})


def _has_classes(line: Mapping[str, Any]) -> bool:
    return bool((line.get("test") or {}).get("per_class"))
