"""A run's record as its readers see it, whatever became of the run; nothing here writes, or imports torch at once.

`record_at` finds the record that is meant, `RunRecord` is one, with what a list says of it at a glance, `RunFigures`
is what its first rounds came to, as comparisons set them side by side.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
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
"""How a run stands; ``killed`` is one whose record says ``running`` and that no process writes."""


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
        If the latest is asked for if there is none.
    """
    place = Path(name).expanduser().absolute()
    if place.exists() or Path(name).name != str(name):
        return place
    output = load({"output-dir": output_dir}).output_dir
    if str(name) != LATEST:
        return output / name if RunDirectory(output / name).is_there() else place
    # An id begins with the time at which its run began.
    records = sorted(path for path in output.glob("[!.]*") if RunDirectory(path).is_there())
    if not records:
        raise ConfigError(f"there is no record in {output}, and so no {LATEST} one.")
    newest = (path for path in reversed(records) if not _is_of_a_search(path))
    return next(newest, records[-1])


def _is_of_a_search(directory: Path) -> bool:
    run = RunRecord.find(directory)
    return run is not None and run.begun_by == SEARCH.strip()


class RunRecord(RunDirectory):
    """The record of a run that is over, or was interrupted, or still goes on.

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
        """Return the record in ``directory``; None if there is none that can be read."""
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
        """audit-images.json, None if nobody asked; FederationError if a value is not what the audit writes."""
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
        """The command that began it, such as run or compare; search, of a comparison's search."""
        words = [str(word) for word in self.provenance.get("command", [])]
        if words[-1:] == [f"#{SEARCH.strip()}"]:
            return SEARCH.strip()
        return words[1] if words[:1] == ["nectar"] and words[1:] else (words[0] if words else "")

    @property
    def alone(self) -> bool:
        """Whether it is known to have run alone, so that its seconds are its own."""
        return self.provenance.get(ALONE) is True

    @property
    def planned(self) -> int | None:
        """The rounds asked for, or more where it was told to go on; None if the record does not say."""
        asked = self._typed("rounds")
        return max(asked, self.done) if _is_whole(asked) else None

    @property
    def seed(self) -> int | None:
        """The seed; None if the record does not say."""
        return seed if _is_whole(seed := self._typed("seed")) else None

    @property
    def method(self) -> str:
        """The method as it was typed."""
        return str(self._typed("method"))

    @property
    def dataset(self) -> str:
        """The data set as it was typed."""
        return str(self._typed("dataset"))

    def _typed(self, key: str) -> Any:
        return self.provenance["run-config"].get(key, "")

    @cached_property
    def _readable(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl that can be read: a glance says what is there."""
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
        """How it stands, one of `OUTCOMES`."""
        kind = str(self.provenance.get("outcome", "")).partition(":")[0]
        if kind != "running":
            return kind if kind in OUTCOMES else "failed"
        return "running" if self.is_written() else "killed"

    @cached_property
    def size(self) -> int:
        """The bytes of its files."""
        count = 0
        for folder, _, files in os.walk(self.directory):
            for name in files:
                with suppress(OSError):  # gone meanwhile
                    count += Path(folder, name).lstat().st_size
        return count

    @property
    def started(self) -> datetime | None:
        """When it began."""
        try:
            began = datetime.strptime(str(self.provenance.get("started")), "%Y-%m-%dT%H:%M:%SZ")
        except ValueError:
            return None
        return began.replace(tzinfo=UTC)

    def checkpoint(self, *, best: bool = False) -> Checkpoint:
        """Return the newest checkpoint, or that of the round best on the validation share."""
        from server_app.checkpoint import Checkpoint

        return Checkpoint.load(self.best if best else self.last)

    def synthetic(self, *, best: bool = False) -> tuple[int, dict[str, SyntheticImages]]:
        """Return the round and the sets that its sites sent, by site; (0, {}) if the method sends no images."""
        from nectar.records.synthetic_sets import load_sets

        path = self.best_sets if best else self.last_sets
        return load_sets(path) if path.is_file() else (0, {})

    def figures(self, rounds: int | None = None) -> RunFigures:
        """Return what the first ``rounds`` rounds came to (default: those of its configuration)."""
        rounds = self.config.rounds if rounds is None else rounds
        if self.result_round and self.completed:
            rounds = min(rounds, self.done)  # its last round may have come sooner
        lines = [line for line in self.rounds if line["round"] <= rounds]
        measure = self.config.evaluation.measure
        figures = tuple(RoundFigures.of(line, measure) for line in lines)
        hardware = self.provenance.get("hardware", {})
        cuda = hardware.get("cuda") if str(hardware.get("device", "")).startswith("cuda") else None
        by_class = [(line.get("test") or {}).get("per_class") for line in lines]
        audit = self.audit if self.audit and self.audit["round"] == rounds else None
        attacks = audit["all"]["attacks"] if audit else {}
        strongest = attacks[audit["all"]["strongest"]] if audit and attacks else {}
        return RunFigures(
            self.directory,
            figures,
            completed=self.completed and bool(figures) and figures[-1].round == rounds,
            alone=self.alone,
            chance=next((1 / len(each) for each in by_class if each), 0.0),
            hardware=cuda[0] if cuda else str(hardware.get("machine", "")),
            found=strongest.get("found", math.nan),
            false_alarms=strongest.get("false_alarms", math.nan),
            result_round=self.result_round,
            audited_in_part=bool(audit and strongest and audit.get("rounds_not_kept", 0) > 0),
        )


def over_classes(figures: Mapping[str, Any]) -> str:
    """Say over which part of the classes a line's figures are, `` over 1 of 2 classes``; nothing where over all."""
    by_class = figures.get("per_class") or []
    judged = sum(one is not None for one in by_class)
    fewer = f"{judged} of {len(by_class)} classes" if judged < len(by_class) else ""
    return f" over {words}" if (words := figures.get("over") or fewer) else ""


@dataclass(frozen=True)
class RoundFigures:
    """What a round came to.

    Parameters
    ----------
    round : int
        Its number; 0 is before training.
    accuracy : float
        On the test set, or at the sites where the server has none; NaN if it was not measured.
    validation : float
        The run's measure on its validation split; NaN if there is none.
    bytes_up, bytes_down : int
        Bytes from and to all sites.
    seconds_devices, seconds_server : float
        Seconds that all devices computed, and that the server did; its evaluation is not counted.
    rejected : int
        Replies that the server did not take.
    finite : bool
        Whether the loss is a number.
    partial : bool
        Whether a class lacked an example to be judged by.
    floats_up : int
        Numbers from all sites, as papers count them.
    makes_images : bool
        Whether sites only made the images of which later rounds learn, as in Fedssyn.
    epsilon : float
        What the run has cost a site of its privacy until then, at the one where it is most; NaN where none says so.
    models : mapping of str to float
        The run's measure by network, where the server learns several.
    measure : str
        What the run is judged by.
    others : mapping of str to float
        The other `MEASURES`, where accuracy was taken, and over the sites the mean, deviation and worst of the measure.
    """

    round: int
    accuracy: float
    validation: float
    bytes_up: int
    bytes_down: int
    seconds_devices: float
    seconds_server: float
    rejected: int
    finite: bool
    partial: bool = False
    floats_up: int = 0
    makes_images: bool = False
    epsilon: float = math.nan
    models: Mapping[str, float] = field(default_factory=dict)
    measure: str = "accuracy"
    others: Mapping[str, float] = field(default_factory=dict)

    @property
    def measured(self) -> float:
        """The run's measure, taken where accuracy was."""
        return self.others.get(self.measure, math.nan) if self.measure in OTHERS else self.accuracy

    @classmethod
    def of(cls, line: Mapping[str, Any], measure: str = "accuracy") -> Self:
        """Return the figures of a line of metrics.jsonl of a run that is judged by ``measure``."""
        judged = line.get("test") or line.get("sites") or {}
        at_sites = line.get("sites") or line.get("validation") or {}
        seconds = line.get("seconds", {})
        on_devices = (seconds.get("by_site") or {}).values()
        return cls(
            round=line["round"],
            accuracy=_number(judged.get("accuracy")),
            validation=_number((line.get("validation") or {}).get(measure)),
            bytes_up=sum(line["bytes"]["up"].values()),
            bytes_down=sum(line["bytes"]["down"].values()),
            seconds_devices=sum(value or 0.0 for value in on_devices),
            seconds_server=sum(
                v or 0.0 for phase, v in seconds.items() if phase not in _NOT_SERVER
            ),
            rejected=len(line.get("rejected") or {}),
            finite=judged.get("loss", 0.0) is not None,
            partial=bool(over_classes(judged)),
            floats_up=line.get("floats_up") or 0,
            makes_images=any(MADE in own for own in (line.get("devices") or {}).values()),
            epsilon=max(map(_epsilon, _spent(line)), default=math.nan),
            models={
                name: _number(own.get(measure)) for name, own in line.get("models", {}).items()
            },
            measure=measure,
            others={name: _number(judged.get(name)) for name in OTHERS}
            | {f"site_{name}": _number(at_sites.get(name)) for name in OVER_SITES},
        )


@dataclass(frozen=True)
class RunFigures:
    """What a run came to.

    Parameters
    ----------
    alone : bool
        Whether no other run went on beside it.
    chance : float
        The accuracy of guessing.
    hardware : str
        The processor, or the GPU, in words; empty if the record does not say.
    found, false_alarms : float
        The shares of members and of controls that the strongest attack of `nectar audit images` takes for members;
        NaN where the run as it ended was not audited.
    audited_in_part : bool
        Whether the audit lacked what was sent in some round: more members may be found then.
    result_round : int
        The best round, of a run that ended by evaluation.patience; 0: the last one counts.
    """

    directory: Path
    rounds: tuple[RoundFigures, ...]
    completed: bool
    alone: bool
    chance: float
    hardware: str
    found: float = math.nan
    false_alarms: float = math.nan
    audited_in_part: bool = False
    result_round: int = 0

    @property
    def result(self) -> RoundFigures | None:
        """The last round, or the best one of a run with patience; None without any."""
        best = next((one for one in self.rounds if one.round == self.result_round), None)
        return (best if self.result_round else None) or (self.rounds[-1] if self.rounds else None)

    @property
    def final(self) -> float:
        """The run's measure after the round that counts; NaN without one."""
        return self.result.measured if self.trained and self.result else math.nan

    def of(self, network: str, own: str) -> float:
        """Return the final figure of a network; NaN if it was not judged. ``own`` is the run's; empty means any."""
        judged = self.result.models if self.trained and self.result else {}
        if judged and network:
            return judged.get(network, math.nan)
        return self.final if network in ("", own) else math.nan

    @property
    def trained(self) -> tuple[RoundFigures, ...]:
        """The rounds after that before training."""
        return tuple(one for one in self.rounds if one.round)

    @property
    def rejected(self) -> int:
        """Replies that the server did not take, in all rounds."""
        return sum(one.rejected for one in self.rounds)

    @property
    def learned(self) -> bool:
        """Whether it ended above chance, with a loss that is a number."""
        last = self.rounds[-1:]
        return bool(last and last[0].finite and last[0].accuracy > self.chance)

    def up_to(self, target: float) -> tuple[RoundFigures, ...] | None:
        """Return the rounds up to the first that reaches ``target``; None if none does."""
        for position, one in enumerate(self.rounds):
            if one.measured >= target:
                return self.rounds[: position + 1]
        return None


def _spent(line: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return ((line.get("notes") or {}).get("spent") or {}).values()


def _epsilon(charged: Mapping[str, Any]) -> float:
    return math.inf if charged["epsilon"] is None else float(charged["epsilon"])


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
