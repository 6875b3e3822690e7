"""The point from which a record is continued; everything is checked before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import Any

from common.config.resolved import Config
from common.division import require_same_data
from common.errors import FederationError
from common.storage.files import collect_leftovers
from server_app.checkpoint import Checkpoint, Checksum
from server_app.data_of_run import recorded_data
from server_app.record import LinesChecksum, Record
from server_app.run_directory import LATEST, Line, RunDirectory, has_diverged
from strategies.exchange.replies import Outcome
from strategies.federated import Federated

logger = getLogger("flwr")

_MEND = "restore a complete copy of the record, or start a new run; the record was not changed"


def recorded_settings(output_dir: Path, name: str) -> dict[str, Any]:
    """Return the directory of the record with that id, and the settings in its provenance.

    Raises
    ------
    FederationError
        If no such record is below ``output_dir``, or this release cannot read it.
    """
    below = sorted(path for path in output_dir.glob("[!.]*") if RunDirectory(path).is_there())
    records = {path.name: path for path in below} | ({LATEST: below[-1]} if below else {})
    found = records.get(name)
    if found is None:
        raise FederationError(
            f"there is no record {name:.80} below {output_dir} on the server: give the id that the run's log states, "
            "or the server's output-dir as output-dir=/abs/path"
        )
    stated = RunDirectory(found).stated()
    if stated is None:
        raise FederationError(
            f"the record {found.name} on the server {RunDirectory(found).why_not()}"
        )
    settings = {"directory": str(found), "run-config": stated["run-config"]}
    return settings | {"continued": stated.get("continued", [])}


@dataclass(frozen=True)
class ResumePoint:
    """The point from which a run continues.

    Attributes
    ----------
    checkpoint : Checkpoint or None
        After which round; None for a run that begins.
    best : float or None
        The best accuracy on the validation share so far.
    line : mapping or None
        The line of the checkpoint's round where metrics.jsonl lacks it, because it awaits the sites' figures.
    diverged : bool
        Whether the test loss of the checkpoint's round is not finite.
    inherited : mapping or None
        What partition.json says of the sites whose work a new record takes over from another one.
    """

    record: Record
    checkpoint: Checkpoint | None = None
    best: float | None = None
    line: Mapping[str, Any] | None = None
    diverged: bool = False
    inherited: Mapping[str, Any] | None = None

    @property
    def unjudged(self) -> bool:
        """Whether the sites have yet to evaluate the checkpoint's weights."""
        return self.checkpoint is not None and self.checkpoint.line is not None

    @property
    def first_round(self) -> int:
        """The round that comes next."""
        return 1 if self.checkpoint is None else self.checkpoint.server_round + 1

    def with_inherited(self, partition: dict[str, Any]) -> dict[str, Any]:
        """Return the run's own partition.json, with the inherited sites added."""
        if self.inherited is None:
            return partition
        own = partition if partition["sites"] else {}
        return {**self.inherited, **own, "sites": self.inherited["sites"] | partition["sites"]}


def resume_point_of(
    config: Config, strategy: Federated, ancestor: Record | None = None
) -> ResumePoint:
    """Return the point from which the run of ``config`` continues, with ``strategy`` restored to it.

    The record is a new one if the run begins, or is made of an ``ancestor``'s work.

    Raises
    ------
    FederationError
        If the record that it continues is another run's, is damaged, holds what was written at two times, has more
        rounds than requested, or is being written; or if the data differ from those at its start. Nothing of it
        has been changed then.
    """
    if not config.resume:
        return ResumePoint(Record.create(config))
    record = ancestor or Record.open(config)
    try:
        recorded = recorded_data(record.stated() or {})
        require_same_data(config.dataset, recorded, strategy.members.data)
        if ancestor is not None:
            names = strategy.derive()
            before = ancestor.json("partition.json") or {"sites": {}}
            rows = {name: row for name, row in before["sites"].items() if name in names}
            return ResumePoint(Record.create(config), inherited={**before, "sites": rows})
        point, lines = _last_point(record, config)
        if (checkpoint := point.checkpoint) is not None:
            strategy.restore(checkpoint.strategy)
            strategy.members.last_accepted_round = dict(checkpoint.last_accepted_round)
            if checkpoint.line is not None:
                strategy.members.outcome = Outcome(rejected=dict(checkpoint.line["rejected"]))
        with record.writing():
            collect_leftovers(record.directory)
            record.keep_lines(lines)
            record.note_continued(config)
    except BaseException:
        record.close()
        raise
    if checkpoint is not None:
        logger.info("continuing after round %d", checkpoint.server_round)
    return point


def _last_point(record: Record, config: Config) -> tuple[ResumePoint, int]:
    """Return where a run left off, and how many lines of metrics.jsonl stay."""
    if not record.last.is_file():
        _require_lines(record.metrics(), record, 0, config)
        return ResumePoint(record), 0
    checkpoint, lines = Checkpoint.load(record.last), record.metrics()
    done = checkpoint.server_round
    on_record = next((line for line in lines if line["round"] == done), None)
    # A line that is in the checkpoint and in the file: the run ended after the sites' figures came.
    kept = done if on_record is None and checkpoint.line is not None else done + 1
    _require_lines(lines, record, kept, config, checkpoint.lines)
    if done > config.rounds:
        raise FederationError(
            f"{record.directory} is at round {done}, and rounds={config.rounds} asks for fewer: give "
            f"rounds={done} or more, or leave rounds out"
        )
    line = on_record or checkpoint.line or {}
    waiting = checkpoint.line if on_record is None else None
    best = best_until(record, checkpoint)
    return ResumePoint(record, checkpoint, best, waiting, has_diverged(line)), kept


def _require_lines(
    lines: list[Line], record: Record, kept: int, config: Config, checksum: Checksum | None = None
) -> None:
    """Refuse lines that do not fit the checkpoint: one a round, as many as are ``kept``.

    One more is what a crash leaves: a round's line is written before its checkpoint. A run without a checkpoint may
    have started its first round.

    Raises
    ------
    FederationError
        It names the line that is missing, out of place or too many.
    """
    path, last = record.metrics_path, kept - 1
    for wanted in range(kept):
        if wanted >= len(lines):
            raise FederationError(
                f"{path} has no line of round {wanted}, and the checkpoint is of round {last}: {_MEND}"
            )
        if (found := lines[wanted]["round"]) != wanted:
            raise FederationError(
                f"line {wanted + 1} of {path} is round {found}'s where round {wanted}'s belongs: {_MEND}"
            )
    if len(lines) > max(kept, 1) + 1:
        at = len(lines) - 1
        what = (
            f"is of round {last}, and {path.name} goes up to round {at}"
            if kept
            else f"is missing, though round {at} was recorded"
        )
        raise FederationError(
            f"{record.last} {what}: put back the newest one, or begin a new run; nothing of the record was changed"
        )
    if checksum is not None and LinesChecksum(lines[: checksum[0]]).value != checksum:
        raise FederationError(
            f"the figures in {path} are not those with which the checkpoint was written: {_MEND}"
        )


def ancestor_of(config: Config, strategy: Federated) -> Record | None:
    """Return the record that a new one is made of, with ``strategy`` put back to there; None if it is made of none.

    FederationError as `resume_point_of` raises it.
    """
    if not strategy.derived_by:
        return None
    record = Record.open(config, strategy.derived_by)
    try:
        strategy.restore(Checkpoint.load(record.last).strategy)
    finally:
        record.close()
    return record


def best_until(record: Record, checkpoint: Checkpoint) -> float | None:
    """Return the best accuracy on the validation share up to the checkpoint's round."""
    if not record.best.is_file():
        return None
    best = Checkpoint.load(record.best)
    passed = best.server_round > checkpoint.server_round
    return checkpoint.validation_accuracy if passed else best.validation_accuracy
