"""Read access to a run's record, in any state; the module does not write, and imports torch only when needed.

`record_at` finds the record that is meant; `RunRecord` is one, with what a list says of it at a glance and, as
`RunRecord.frame`, the figures of its rounds.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from common.config.loading import load
from common.config.resolved import Config
from common.config.user_parts import ImportPolicy
from common.errors import ConfigError, FederationError
from common.settings.sections import MEASURES
from common.storage.files import read_file
from nectar.records.record_shape import Audit, Line, Partition, Provenance, require
from server_app.run_directory import (
    ALONE,
    AUDIT,
    COMPLETED,
    LATEST,
    PROVENANCE,
    RunDirectory,
    parse_line,
)

if TYPE_CHECKING:
    from pandas import DataFrame

    from common.wire.images import SyntheticImages
    from server_app.checkpoint import Checkpoint

OTHERS = tuple(name for name in MEASURES if name != "accuracy")
OVER_SITES = ("mean", "deviation", "worst")
"""Of a line's figures: by what else than accuracy it is judged, and what the run's measure is over the sites."""

#: phases of a round that are not the server's own work: waiting for the devices, and judging the model
_NOT_SERVER = ("devices", "evaluate", "by_site")

#: a device's figure in the rounds in which it makes images: `common.specs.fedssyn.DONE`, whose module imports torch
MADE = "synthesis-done"

SEARCH = "search "
"""How the rows begin that a comparison's search runs."""

OUTCOMES = ("completed", "failed", "interrupted", "running", "killed")
"""The state of a run; ``killed`` is one whose record says ``running`` and that no process writes."""


def record_at(name: str | Path, output_dir: str = "") -> Path:
    """Return the directory of a record.

    Parameters
    ----------
    name : str or Path
        Its directory, its id, or ``latest``. What is there as a directory, or is a path, is that path.
    output_dir : str, optional
        Where ids are looked up (default: the configuration's).

    Raises
    ------
    ConfigError
        If the latest is requested and there is no record.
    """
    place = Path(name).expanduser().absolute()
    if place.exists() or Path(name).name != str(name):
        return place
    output = load({"output-dir": output_dir}).output_dir
    if str(name) != LATEST:
        return output / name if RunDirectory(output / name).is_there() else place
    # An id starts with the start time of its run.
    records = sorted(path for path in output.glob("[!.]*") if RunDirectory(path).is_there())
    if not records:
        raise ConfigError(f"{output} contains no record, so {LATEST} does not name one.")
    for path in reversed(records):
        if (run := RunRecord.find(path)) is None or run.begun_by != SEARCH.strip():
            return path
    return records[-1]


class RunRecord(RunDirectory):
    """The record of a run that has ended, was interrupted, or is still running.

    Parameters
    ----------
    directory : Path
        Where it is.
    policy : callable, optional
        Called with each import path that the record names before it is imported; None imports them all.
    provenance : dict, optional
        What its provenance states, where that has been read.
    """

    def __init__(
        self,
        directory: Path,
        policy: ImportPolicy | None = None,
        provenance: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(Path(directory).expanduser().absolute())
        self.import_policy = policy
        if provenance is not None:
            self.provenance = provenance

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunRecord) and other.directory == self.directory

    def __hash__(self) -> int:
        return hash(self.directory)

    @classmethod
    def open(cls, directory: Path, policy: ImportPolicy | None = None) -> Self:
        """Return the run recorded in ``directory``; what it names by import path is put before ``policy``.

        Raises
        ------
        ConfigError
            If it is no run's record.
        FederationError
            If a value of its provenance is not what a run writes.
        """
        run = cls(directory, policy)
        require(Provenance, run.provenance, run.directory / PROVENANCE)
        return run

    @classmethod
    def find(cls, directory: Path) -> Self | None:
        """Return the record in ``directory``; None if it has none that can be read."""
        stated = RunDirectory(directory).stated()
        return None if stated is None else cls(directory, provenance=stated)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """provenance.json: command, versions, source, hardware, outcome; ConfigError without this release's."""
        if (stated := self.stated()) is None:
            raise ConfigError(f"{self.directory} {self.why_not()}")
        return stated

    @cached_property
    def partition(self) -> dict[str, Any]:
        """partition.json: classes, and each site's examples, by class where the server knew them.

        Empty for a run that ended before its roll call; FederationError if a value is not what a run writes.
        """
        content = self.json("partition.json") or {}
        require(Partition, content, self.directory / "partition.json")
        return content

    @property
    def sites(self) -> dict[str, dict[str, Any]]:
        """What is known of each site: examples, and where the server has the data its partition and classes."""
        return dict(self.partition.get("sites", {}))

    @property
    def counted(self) -> bool:
        """Whether the server knew the class counts, because the sites hold shares of a data set that it has too."""
        return any("classes" in row for row in self.sites.values())

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, all figures of every round, that of round 0 (before training) first.

        Raises
        ------
        FederationError
            If the file cannot be read, or a value of it is not what a run writes.
        """
        path, lines = self.metrics_path, self.metrics()
        for number, line in enumerate(lines, 1):
            require(Line, line, path, f"line {number}")
        by_class = [(line.get("test") or {}).get("per_class") for line in lines]
        if len({len(each) for each in by_class if each}) > 1:
            raise FederationError(f"{path} is damaged: its rounds differ in the number of classes")
        return lines

    @cached_property
    def audit(self) -> dict[str, Any] | None:
        """audit-images.json, None if no audit was run; FederationError if a value is not what the audit writes."""
        content = self.json(AUDIT)
        if content is not None:
            require(Audit, content, self.directory / AUDIT)
        return content

    @cached_property
    def config(self) -> Config:
        """The resolved configuration, such as ``config.rounds`` and ``config.partition.alpha``."""
        return load(self.provenance["run-config"], policy=self.import_policy)

    @property
    def completed(self) -> bool:
        """Whether it ran to its last round."""
        return bool(self.provenance.get("outcome") == COMPLETED)

    @property
    def result_round(self) -> int:
        """The best round, of a completed run with evaluation.patience; else 0, and the last round counts."""
        found = self.provenance.get("result_round", 0)
        return found if _is_whole(found) else 0

    @property
    def begun_by(self) -> str:
        """The command that started it, such as run or compare; search, for a run of a comparison's search."""
        words = [str(word) for word in self.provenance.get("command", [])]
        if words[-1:] == [f"#{SEARCH.strip()}"]:
            return SEARCH.strip()
        return words[1] if words[:1] == ["nectar"] and words[1:] else (words[0] if words else "")

    @property
    def alone(self) -> bool:
        """Whether it is known to have run alone, so that its seconds are comparable."""
        return self.provenance.get(ALONE) is True

    @property
    def planned(self) -> int | None:
        """The number of rounds planned, also by a continuation; None if the record does not state it."""
        asked = self._typed("rounds")
        return max(asked, self.done) if _is_whole(asked) else None

    @property
    def seed(self) -> int | None:
        """The seed; None if the record does not state it."""
        return seed if _is_whole(seed := self._typed("seed")) else None

    @property
    def method(self) -> str:
        """The method as typed."""
        return str(self._typed("method"))

    @property
    def dataset(self) -> str:
        """The data set as typed."""
        return str(self._typed("dataset"))

    def _typed(self, key: str) -> Any:
        return self.provenance["run-config"].get(key, "")

    @cached_property
    def _readable(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl that can be read; the others are skipped."""
        try:
            texts = read_file(self.metrics_path).splitlines()
        except OSError:
            return []
        return [line for line in map(parse_line, texts) if line]

    @property
    def done(self) -> int:
        """The rounds on record."""
        return max((line["round"] for line in self._readable), default=0)

    @property
    def last_accuracy(self) -> float | None:
        """The accuracy of the last round, on the server's test set or else at the sites."""
        last = self._readable[-1] if self._readable else {}
        figures = last.get("test") or last.get("sites")
        value = figures.get("accuracy") if isinstance(figures, dict) else None
        return float(value) if isinstance(value, int | float) else None

    @property
    def outcome(self) -> str:
        """The run's state, one of `OUTCOMES`."""
        kind = str(self.provenance.get("outcome", "")).partition(":")[0]
        if kind != "running":
            return kind if kind in OUTCOMES else "failed"
        return "running" if self.is_written() else "killed"

    @cached_property
    def size(self) -> int:
        """The total size of its files in bytes."""
        count = 0
        for folder, _, files in os.walk(self.directory):
            for name in files:
                with suppress(OSError):  # gone meanwhile
                    count += Path(folder, name).lstat().st_size
        return count

    @property
    def started(self) -> datetime | None:
        """The start time of the run."""
        try:
            start = datetime.strptime(str(self.provenance.get("started")), "%Y-%m-%dT%H:%M:%SZ")
        except ValueError:
            return None
        return start.replace(tzinfo=UTC)

    def checkpoint(self, *, best: bool = False) -> Checkpoint:
        """Return the newest checkpoint, or that of the round best on the validation share."""
        from server_app.checkpoint import Checkpoint

        return Checkpoint.load(self.best if best else self.last)

    def synthetic(self, *, best: bool = False) -> tuple[int, dict[str, SyntheticImages]]:
        """Return the round and the sets that its sites sent, by site; (0, {}) if the method sends no images."""
        from nectar.records.synthetic_sets import load_sets

        path = self.best_sets if best else self.last_sets
        return load_sets(path) if path.is_file() else (0, {})

    def frame(self) -> DataFrame:
        """Return the main figures of its rounds, as `rounds_frame` does."""
        return rounds_frame(self.rounds, self.config.evaluation.measure)


def rounds_frame(lines: Iterable[Mapping[str, Any]], measure: str) -> DataFrame:
    """Return the main figures of rounds, one row per round; NaN if not measured.

    Parameters
    ----------
    lines : iterable of mapping
        Lines of metrics.jsonl.
    measure : str
        What the run is judged by.

    Returns
    -------
    pandas.DataFrame
        ``round`` (0 is before training), ``accuracy`` and ``loss`` on the test set, or at the sites where the server
        has none, ``validation`` (the run's measure on its validation split), ``bytes_up`` and ``bytes_down`` of all
        sites, ``rejected`` (replies that the server did not take), ``seconds_devices`` (of all devices together) and
        ``seconds_server`` (without its evaluation). The other measures ``f1``, ``balanced`` and ``auc``; over the
        sites ``site_mean``, ``site_deviation`` and ``site_worst`` of the run's measure. ``measured`` is that measure
        where accuracy was taken; ``diverged``, whether the loss is not a number; ``partial``, whether a class lacked
        an example to be judged by; ``floats_up``, numbers from all sites, as papers count them; ``makes_images``,
        whether sites only made the images of which later rounds learn, as in Fedssyn; ``epsilon``, what the run has
        cost until then the site that it cost most. ``models.NAME`` is the measure of each network where there are
        several.
    """
    from pandas import DataFrame

    # one row more gives a frame without a round its columns
    rows = [_figures(line, measure) for line in ({"round": 0}, *lines)]
    return DataFrame(rows)[1:].reset_index(drop=True)


def over_classes(figures: Mapping[str, Any]) -> str:
    """Say over which part of the classes a line's figures are, `` over 1 of 2 classes``; nothing where over all."""
    by_class = figures.get("per_class") or []
    judged = sum(one is not None for one in by_class)
    fewer = f"{judged} of {len(by_class)} classes" if judged < len(by_class) else ""
    return f" over {words}" if (words := figures.get("over") or fewer) else ""


def _figures(line: Mapping[str, Any], measure: str) -> dict[str, Any]:
    """Return a line of metrics.jsonl as a row of `rounds_frame`."""
    judged = line.get("test") or line.get("sites") or {}
    at_sites = line.get("sites") or line.get("validation") or {}
    seconds, moved = line.get("seconds", {}), line.get("bytes", {})
    on_devices = (seconds.get("by_site") or {}).values()
    spent = ((line.get("notes") or {}).get("spent") or {}).values()
    epsilons = [math.inf if one["epsilon"] is None else one["epsilon"] for one in spent]
    figures = {
        "accuracy": judged.get("accuracy"),
        "loss": judged.get("loss"),
        "validation": (line.get("validation") or {}).get(measure),
        "seconds_devices": sum(value or 0.0 for value in on_devices),
        "seconds_server": sum(v or 0.0 for k, v in seconds.items() if k not in _NOT_SERVER),
        **{name: judged.get(name) for name in OTHERS},
        **{f"site_{name}": at_sites.get(name) for name in OVER_SITES},
        "measured": judged.get(measure),
        "epsilon": max(epsilons, default=None),
        **{f"models.{name}": own.get(measure) for name, own in line.get("models", {}).items()},
    }
    return {
        "round": line["round"],
        **{name: math.nan if value is None else float(value) for name, value in figures.items()},
        "bytes_up": sum(moved.get("up", {}).values()),
        "bytes_down": sum(moved.get("down", {}).values()),
        "rejected": len(line.get("rejected") or {}),
        "floats_up": line.get("floats_up") or 0,
        "diverged": judged.get("loss", 0.0) is None,
        "partial": bool(over_classes(judged)),
        "makes_images": any(MADE in own for own in (line.get("devices") or {}).values()),
    }


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
