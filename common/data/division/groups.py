"""Samples that belong together, as those of one patient: who they are, and cuts that leave them whole."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from common.data.division.parts import Indices, Parts
from common.errors import DataError
from common.samples.dataset import Labels

log = logging.getLogger("flwr")


def group_ids(names: Iterable[str]) -> Labels:
    """Return a number for each name, int64: 63 bits of its SHA-256, which no other name in the data changes."""
    words = (b"group " + name.encode(errors="surrogateescape") for name in names)
    digests = (hashlib.sha256(word).digest() for word in words)
    return np.array([int.from_bytes(one[:8], "big") >> 1 for one in digests], dtype=np.int64)


def on_both_sides(train: Iterable[str], test: Iterable[str]) -> tuple[int, int]:
    """Return how many groups a set that brings its own test split has in both, and how many in all."""
    learned, judged = set(train), set(test)
    return len((learned & judged) - {""}), len(learned | judged)


def warn_of_shared(both: int, number: int, where: object) -> None:
    """Say loudly that groups are ``on_both_sides``, if any is."""
    if both:
        log.warning(
            "%s: %d of %d groups are in training and in test: the test accuracy is not of others than were learned "
            "from; move each to one side",
            where,
            both,
            number,
        )


class Groups:
    """The groups of some samples, in the order of their numbers.

    Parameters
    ----------
    labels
        int64 [n].
    ids
        int64 [n], the group of each sample.
    """

    def __init__(self, labels: Labels, ids: Labels) -> None:
        _, self.of, self.sizes = np.unique(ids, return_inverse=True, return_counts=True)
        # [groups, classes]; a group's stratum is the class that most of it has
        width = int(labels.max(initial=0)) + 1
        flat = np.bincount(self.of * width + labels, minlength=len(self.sizes) * width)
        self.counts = flat.reshape(len(self.sizes), width)
        self.strata: Labels = self.counts.argmax(1)

    def cut(self, quotas: Indices, rng: np.random.Generator) -> NDArray[np.bool_]:
        """Mark whole groups with about ``quotas`` [classes] samples of each stratum, drawn by ``rng``: bool [n].

        A stratum of which something is wanted gets one group at least, and keeps one; a group of more than twice what
        is wanted is taken last.
        """
        large = np.where(self.sizes > 2 * quotas[self.strata], self.sizes, 0)
        order = np.lexsort((rng.permutation(len(self.sizes)), large, self.strata))
        sizes, strata = self.sizes[order], self.strata[order]
        starts = np.searchsorted(strata, np.arange(len(quotas)))
        ends = np.searchsorted(strata, np.arange(len(quotas)), side="right")
        passed = np.concatenate([[0], np.cumsum(sizes)])
        middle = passed[1:] - passed[starts][strata] - sizes / 2  # of what is held up to a group
        place = np.arange(len(order)) - starts[strata]
        wanted = (middle <= quotas[strata]) | (place == 0)
        wanted &= (quotas[strata] > 0) & (place < (ends - starts)[strata] - 1)
        marked = np.zeros(len(order), dtype=np.bool_)
        marked[order] = wanted
        return marked[self.of]

    def deal(self, wanted: Indices, rng: np.random.Generator) -> Parts:
        """Deal whole groups, the largest first, each to the client that lacks most of what the group has.

        Parameters
        ----------
        wanted
            int64 [clients, classes], what each client would have if samples could be dealt one by one.

        Raises
        ------
        DataError
            There are fewer groups than clients.
        """
        clients = len(wanted)
        if len(self.sizes) < clients:
            raise DataError(
                f"{len(self.sizes)} groups that are kept whole cannot be divided over {clients} sites: set "
                f"federation.sites to {len(self.sizes)} or less"
            )
        lacks = wanted.astype(np.float64)
        given = np.zeros(len(self.sizes), dtype=np.int64)
        number = np.zeros(clients, dtype=np.int64)
        for group in np.lexsort((rng.permutation(len(self.sizes)), -self.sizes)):
            client = int((lacks @ self.counts[group]).argmax())
            lacks[client] -= self.counts[group]
            given[group], number[client] = client, number[client] + 1
        for empty in np.flatnonzero(number == 0):  # gets the smallest group of whoever has most
            richest = int(number.argmax())
            theirs = np.flatnonzero(given == richest)
            given[theirs[self.sizes[theirs].argmin()]] = empty
            number[richest], number[empty] = number[richest] - 1, 1
        owner = given[self.of]
        return Parts(
            np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner, minlength=clients))
        )
