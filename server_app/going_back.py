"""To begin again after an earlier round's checkpoint: which ones there are, and what becomes of the rounds behind."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from logging import getLogger
from pathlib import Path

from common.config.keys import BEST, ROUND
from common.errors import FederationError
from common.storage.files import write_atomically
from server_app.checkpoint import Checkpoint
from server_app.record import Record

logger = getLogger("flwr")

#: versions that a site keeps of what it remembers
REMEMBERED = 3


def chosen(record: Record, told: str) -> Checkpoint:
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


def go_back(record: Record, checkpoint: Checkpoint) -> None:
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
