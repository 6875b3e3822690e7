"""Where a record stands that is to be continued: everything is looked at before anything of it is changed."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import Any

from common.config.keys import BEST, ROUND
from common.config.resolved import Config
from common.division import require_same_data
from common.errors import FederationError
from common.storage.files import collect_leftovers, write_atomically
from server_app.checkpoint import Checkpoint
from server_app.data_of_run import recorded_data
from server_app.record import Record
from strategies.exchange.replies import Outcome
from strategies.federated import Federated

logger = getLogger("flwr")


@dataclass(frozen=True)
class ResumePoint:
    """Where a run goes on.

    Attributes
    ----------
    checkpoint : Checkpoint or None
        Behind which round; None for a run that begins.
    best : float or None
        The best accuracy on the validation share so far.
    line : mapping or None
        The line of the checkpoint's round where metrics.jsonl lacks it, because it awaits the sites' figures.
    diverged : bool
        Whether the test loss of the checkpoint's round is not finite.
    """

    record: Record
    checkpoint: Checkpoint | None = None
    best: float | None = None
    line: Mapping[str, Any] | None = None
    diverged: bool = False

    @property
    def unjudged(self) -> bool:
        """Whether the sites are still to be asked for their figures of the checkpoint's weights."""
        return self.checkpoint is not None and self.checkpoint.line is not None

    @property
    def first_round(self) -> int:
        """The round that comes next."""
        return 1 if self.checkpoint is None else self.checkpoint.server_round + 1


def resume_point_of(
    config: Config, strategy: Federated, ancestor: Record | None = None
) -> ResumePoint:
    """Return where the run of ``config`` goes on, with ``strategy`` put back to there.

    A new record if it begins, or goes on from an ``ancestor``.

    Raises
    ------
    FederationError
        If the record that it continues is another run's, is damaged, holds what was written at two times, has more
        rounds than are asked for, or is being written; or if the data are not those that it began with. Nothing of it
        has been changed then.
    """
    if not config.resume:
        return ResumePoint(Record.create(config))
    record = ancestor or Record.open(config)
    try:
        began = recorded_data(record.stated() or {})
        require_same_data(config.dataset, began, strategy.members.data)
        if ancestor is not None:
            return ResumePoint(Record.create(config))
        standing = _taken_up(record, config)
        if standing.checkpoint is not None:
            strategy.restore(standing.checkpoint.strategy)
            strategy.members.last_accepted_round = dict(standing.checkpoint.last_accepted_round)
        if standing.checkpoint is not None and standing.checkpoint.line is not None:
            strategy.members.outcome = Outcome(rejected=dict(standing.checkpoint.line["rejected"]))
        last = standing.first_round - 1 if standing.checkpoint else -1
        with record.writing():
            collect_leftovers(record.directory)
            if config.round and standing.checkpoint is not None:
                roll_back(record, standing.checkpoint)
            record.metrics_file.keep(last if standing.line is None else last - 1)
            record.note_continued(config)
    except BaseException:
        record.close()
        raise
    if standing.checkpoint is not None:
        logger.info("continuing after round %d", standing.checkpoint.server_round)
    return standing


def _taken_up(record: Record, config: Config) -> ResumePoint:
    there = config.round or record.last.is_file()
    checkpoint = _checkpoint(record, config.round) if there else None
    best = best_until(record, checkpoint)
    done = -1 if checkpoint is None else checkpoint.server_round
    line = None if checkpoint is None else checkpoint.line
    if line is not None and record.metrics_file.has(done):
        line = None  # the run ended between the sites' figures and the next checkpoint
    record.metrics_file.require(done if line is None else done - 1, goes_back=bool(config.round))
    if checkpoint is not None and checkpoint.lines is not None:
        record.metrics_file.require_unchanged(checkpoint.lines)
    if done > config.rounds:
        raise FederationError(
            f"{record.directory} stands at round {done}, and rounds={config.rounds} asks for fewer: give "
            f"rounds={done} or more, or leave rounds out"
        )
    return ResumePoint(
        record, checkpoint, best, line, _has_diverged(line or record.metrics_file.line(done))
    )


def _checkpoint(record: Record, told: str) -> Checkpoint:
    return checkpoint_of_round(record, told) if told else Checkpoint.load(record.last)


def _has_diverged(line: Mapping[str, Any]) -> bool:
    """Return whether a round's test loss was not finite: null in the file, as it was in a checkpoint."""
    test = line.get("test")
    loss = test.get("loss") if isinstance(test, Mapping) else 0.0
    return not (isinstance(loss, int | float) and math.isfinite(loss))


def ancestor_of(config: Config, strategy: Federated) -> Record | None:
    """Return the record that a new one is made of, with ``strategy`` put back to there; None if it is made of none.

    FederationError as `resume_point_of` raises it.
    """
    if not strategy.derived_by:
        return None
    record = Record.open(config, strategy.derived_by)
    try:
        strategy.restore(_checkpoint(record, config.round).strategy)
    finally:
        record.close()
    return record


def partition_with(own: Mapping[str, Any], ancestor: Record, names: Collection[str]) -> Any:
    """Return ``own``, a new record's partition.json, with its ancestor's rows of the sites ``names``."""
    before = ancestor.json("partition.json") or {"sites": {}}
    rows = {name: row for name, row in before["sites"].items() if name in names}
    return {**before, **(own if own["sites"] else {}), "sites": rows | own["sites"]}


# ---- going back ----------------------------------------------------------------------------------
# To begin again after an earlier round's checkpoint: which ones there are, and what becomes of the rounds behind.

#: versions that a site keeps of what it remembers
REMEMBERED = 3


def checkpoint_of_round(record: Record, told: str) -> Checkpoint:
    """Return the checkpoint of round ``told``, a number or ``best``; FederationError says which there are."""
    if told == BEST and record.best.is_file():
        return Checkpoint.load(record.best)
    there = _readable(record)
    for checkpoint in there.values():
        if told == str(checkpoint.server_round):
            return checkpoint
    rounds = {c.server_round: name for name, c in reversed(there.items())}
    named = ", ".join(f"{ROUND}={r} ({name})" for r, name in sorted(rounds.items()))
    raise FederationError(
        f"{record.directory} has no checkpoint for {ROUND}={told}: "
        + (f"there are {named}" if named else "it has none that can be read; begin a new run")
    )


def best_until(record: Record, checkpoint: Checkpoint | None) -> float | None:
    """Return the best accuracy on the validation share up to the checkpoint's round."""
    if checkpoint is None or not record.best.is_file():
        return None
    best = Checkpoint.load(record.best)
    passed = best.server_round > checkpoint.server_round
    return checkpoint.validation_accuracy if passed else best.validation_accuracy


def roll_back(record: Record, checkpoint: Checkpoint) -> None:
    """Make ``checkpoint`` the record's last one; the lines after it are set aside in a file of their own.

    Cut short anywhere, the same can be asked again.
    """
    server_round = checkpoint.server_round
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    aside = record.directory / f"metrics.dropped-{stamp}-{time.time_ns() % 10**6:06d}.jsonl"
    last = len(record.metrics_file.path.read_bytes().splitlines()) - 1
    if last - server_round >= REMEMBERED:
        logger.warning(
            "round %d lies %d rounds back, and a site keeps what it remembered of the last %d: one that goes on from "
            "what it remembered refuses until this run's state is deleted there, and begins afresh then, to other "
            "numbers",
            *(server_round, last - server_round, REMEMBERED),
        )
    if record.metrics_file.set_aside(server_round, aside):
        logger.warning("the lines after round %d are set aside in %s", server_round, aside)
    checkpoint.save(record.last)
    _replace_if_later(record.best, checkpoint)
    _replace_if_later(record.finite, checkpoint)
    if record.best_sets.is_file() and _round_of(record.best) == server_round:
        write_atomically(record.last_sets, lambda to: shutil.copyfile(record.best_sets, to))


def _replace_if_later(path: Path, checkpoint: Checkpoint) -> None:
    """Let no file vouch for a round that is no more."""
    if path.is_file() and _round_of(path) > checkpoint.server_round:
        checkpoint.save(path)


def _round_of(path: Path) -> int:
    return Checkpoint.load(path).server_round if path.is_file() else -1


def _readable(record: Record) -> dict[str, Checkpoint]:
    found: dict[str, Checkpoint] = {}
    for path in (record.last, record.best, record.finite):
        with suppress(FederationError):
            found[path.stem] = Checkpoint.load(path)
    return found
