"""A test split for a set that brings none: a stratified share of its training images, drawn by the run's seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.data.division.stratify import Indices, validation_split
from common.data.store import Contents, Stored, digest_of, shared
from common.draws.seeding import derive
from common.samples.dataset import Split

_CUT = 2  # another number makes every cut be made again


@dataclass(frozen=True)
class Holdout:
    """What share of the training images becomes the test split where there is none, and the run's seed."""

    share: float = 0.0
    seed: int = 0


def with_test(
    stored: Stored, name: str, roots: Sequence[Path], holdout: Holdout, mode: int
) -> Stored:
    """Return ``stored`` with a test split: its own, else one cut off its training split, in a store of its own.

    Parameters
    ----------
    roots : sequence of Path
        Where stores may lie.
    holdout : Holdout
        What to cut; a share of 0 cuts nothing.
    mode : int
        Who may enter a new store.
    """
    if len(stored.test) or not holdout.share or not len(stored.train):
        return stored
    source = digest_of([_CUT, stored.checksum, holdout.share, holdout.seed])

    def cut() -> Contents:
        learned, held_out = (stored.train.at(part) for part in test_split(stored.train, holdout))
        held_out = Split(held_out.images, held_out.labels)  # whose groups are nobody's
        return Contents(learned, held_out, stored.skipped, stored.about)

    return shared(f"{name}-test-{source[:8]}", roots, source, cut, mode)


def test_split(train: Split, holdout: Holdout) -> tuple[Indices, Indices]:
    """Return the sorted positions of what stays to learn from and of what becomes the test split."""
    seed = derive(holdout.seed, "test")
    return validation_split(train.labels, holdout.share, seed, train.owners, least=1)
