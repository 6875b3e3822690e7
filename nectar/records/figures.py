"""A run's figures, read from its record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nectar.records.record_shape import audit_of
from server_app.record import KnownRun, Record

#: phases of a round that are not the server's own work: waiting for the devices, and judging the model
_NOT_SERVER = ("devices", "evaluate", "by_site")


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
        On the server's validation share; NaN if there is none.
    up, down : int
        Bytes from and to all sites.
    device_seconds, server_seconds : float
        Seconds that all devices computed, and that the server did; its evaluation is not counted.
    rejected : int
        Replies that the server did not take.
    finite : bool
        Whether the loss is a number.
    floats_up : int
        Numbers from all sites, as papers count them.
    models : mapping of str to float
        Accuracy by network, where the server learns several.
    """

    round: int
    accuracy: float
    validation: float
    up: int
    down: int
    device_seconds: float
    server_seconds: float
    rejected: int
    finite: bool
    floats_up: int = 0
    models: Mapping[str, float] = field(default_factory=dict)


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
        The processor, or the GPU, in words; empty where the record does not say.
    found, false_alarms : float
        The shares of members and of controls that the strongest attack of `nectar audit images` takes for members;
        NaN where the run as it ended was not audited.
    audited_in_part : bool
        Whether the audit lacked what was sent in some round: more members may be found then.
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

    @property
    def final(self) -> float:
        """The accuracy after the last round there is; NaN without one."""
        return self.rounds[-1].accuracy if self.trained else math.nan

    def of(self, network: str, own: str) -> float:
        """Return the final accuracy of a network; NaN if it was not judged. ``own`` is the run's; empty means any."""
        judged = self.rounds[-1].models if self.trained else {}
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
            if one.accuracy >= target:
                return self.rounds[: position + 1]
        return None


def read_run(run: KnownRun, rounds: int) -> RunFigures:
    """Read the first ``rounds`` rounds of a record."""
    record = Record(run.directory)
    lines = [line for line in record.metrics() if line["round"] <= rounds]
    figures = tuple(_round(line) for line in lines)
    whole = bool(figures) and figures[-1].round == rounds
    hardware = run.provenance.get("hardware", {})
    cuda = hardware.get("cuda") if str(hardware.get("device", "")).startswith("cuda") else None
    return RunFigures(
        run.directory,
        figures,
        run.completed and whole,
        run.alone,
        _chance(lines),
        cuda[0] if cuda else str(hardware.get("machine", "")),
        *_audited(record, rounds),
    )


def _audited(record: Record, rounds: int) -> tuple[float, float, bool]:
    """Return which shares of members and controls an audit after round ``rounds`` took for members; NaN without.

    And whether it lacked a round's images.
    """
    audit = audit_of(record)
    if audit is None or audit["round"] != rounds or not audit["all"]["attacks"]:
        return math.nan, math.nan, False
    strongest = audit["all"]["attacks"][audit["all"]["strongest"]]
    return strongest["found"], strongest["false_alarms"], audit.get("rounds_not_kept", 0) > 0


def _round(line: Mapping[str, Any]) -> RoundFigures:
    judged = line.get("test") or line.get("sites") or {}
    seconds = line.get("seconds", {})
    on_devices = seconds.get("by_site", {}).values()
    return RoundFigures(
        round=line["round"],
        accuracy=_number(judged.get("accuracy")),
        validation=_number((line.get("validation") or {}).get("accuracy")),
        up=sum(line["bytes"]["up"].values()),
        down=sum(line["bytes"]["down"].values()),
        device_seconds=sum(value or 0.0 for value in on_devices),
        server_seconds=sum(v or 0.0 for phase, v in seconds.items() if phase not in _NOT_SERVER),
        rejected=len(line.get("rejected") or {}),
        finite=judged.get("loss", 0.0) is not None,
        floats_up=line.get("floats_up") or 0,
        models={name: _number(own.get("accuracy")) for name, own in line.get("models", {}).items()},
    )


def _chance(lines: list[dict[str, Any]]) -> float:
    for line in lines:
        per_class = (line.get("test") or {}).get("per_class")
        if per_class:
            return 1 / len(per_class)
    return 0.0


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
