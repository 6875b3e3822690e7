"""What the roll call says of every node of a simulation at once: counts of a division, for which no image is read."""

from __future__ import annotations

import numpy as np
import torch
from flwr.app import Context
from numpy.typing import NDArray

from client_app.membership import divided, key_of
from client_app.site import PARTITION, engine_of
from common.data.division.counts import class_counts
from common.data.division.stratify import Indices, held_back
from common.division import Division
from common.errors import FederationError
from common.learning.run import Run
from common.sites import IN_PROCESS, site_name

Counts = NDArray[np.int64]

_SAID_ALIKE = {*PARTITION, "simulated"}
"""The keys of a node config with which a node differs from the others in its partition alone."""


def require_one_for_all(run: Run, context: Context) -> None:
    """Refuse to speak for other nodes, but for those of one process whose data is this process's to divide.

    Raises
    ------
    FederationError
        If this is a site of its own, or its nodes differ in more than their partitions.
    """
    own = set(context.node_config) - _SAID_ALIKE or run.config.images.sites
    if engine_of(context) != IN_PROCESS or own:
        raise FederationError("this site speaks for itself alone: ask each by itself")


def sizes_of_all(
    division: Division, number: int, *, by_class: bool, held_out: bool
) -> dict[str, NDArray[np.int64]]:
    """Return what each of ``number`` nodes would answer to the roll call, by the names it has there.

    Parameters
    ----------
    number : int
        Partitions (K).
    by_class, held_out : bool
        Whether counts of classes are asked, and numbers of what is held out.

    Returns
    -------
    dict of str to int64 array
        ``num-examples`` [K]; where asked ``class-counts`` [K, classes] and ``num-held-out`` [K].

    Raises
    ------
    FederationError
        If the data has no classes to count.
    """
    run = division.run
    parts, split = division.partition(number), division.dataset.train
    strata, share = run.task.strata(split), run.config.data.held_by_sites
    grouped = division.groups(division.dataset, parts[0]) is not None
    if share and (run.config.private or grouped):  # which are held out is the examples' own matter
        pairs = [_divided(division, index, part) for index, part in enumerate(parts)]
        parts, held = [kept for kept, _ in pairs], []
        gone = np.array([len(out) for _, out in pairs])
    else:
        held = [held_back(strata[part], share) for part in parts] if share else []
        gone = _sums(held, number)
    there = np.array([len(part) for part in parts]) - _sums(held, number)
    sizes = {"num-examples": there if run.config.tells_counts else np.minimum(1, there)}
    if by_class:
        if not run.task.by_class:
            raise FederationError(f"{run.config.dataset} has no classes to count")
        counts = class_counts(strata, parts, len(run.info.classes))
        for row, out in zip(counts, held, strict=False):
            row[: len(out)] -= out
        sizes["class-counts"] = counts
    if held_out:
        sizes["num-held-out"] = gone if run.task.by_class else _counted(division, number)
    return sizes


def _divided(division: Division, index: int, part: Indices) -> tuple[Indices, Indices]:
    """Return a node's positions to learn from, and those that it holds out."""
    site = site_name({"partition-id": index})
    key = key_of(division.run, site, None, seeded=True)
    return divided(division, site, division.dataset, part, key)


def _sums(held: list[Counts], number: int) -> Counts:
    return np.array([int(each.sum()) for each in held] or [0] * number, dtype=np.int64)


def _counted(division: Division, number: int) -> Counts:
    """Return how many targets of what each node holds out count: those of these very texts."""
    dataset, counts = division.dataset, np.zeros(number, dtype=np.int64)
    for index, part in enumerate(division.partition(number)):
        _, held = _divided(division, index, part)
        labels = torch.from_numpy(np.array(dataset.train.labels[held]))
        counts[index] = len(division.run.task.counted(labels))
    return counts
