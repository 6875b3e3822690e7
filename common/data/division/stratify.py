"""Stratified cuts (validation, hold-outs, the test split of digits), which do not divide groups."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from common.draws.seeding import numpy_generator
from common.errors import DataError
from common.samples.dataset import Labels

Indices = NDArray[np.int64]


def validation_split(
    labels: Labels, share: float, seed: int, groups: Labels | None = None, least: int = 0
) -> tuple[Indices, Indices]:
    """Cut a stratified share off a training set; return the sorted indices of what stays and of what is held back.

    The share, in [0, 0.5], is ``round(share * n)`` in all, divided over the classes in proportion (largest remainders).
    No class loses its last image to it, so a set of classes with one image each gives fewer than asked. Samples of one
    of the ``groups`` [n] stay together, so that of them it is about that. If anything is held back, it is ``least`` of
    each class at least, where it has more than that. The same labels [n], share and seed give the same cut.
    """
    if not 0 <= share <= 0.5:
        raise DataError(f"a share of {share} cannot be held back: it must be in [0, 0.5]")
    rng, count = numpy_generator(seed, "validation"), round(share * len(labels))
    least = least if share else 0
    if groups is not None and share:
        by = Groups(labels, groups)
        held = by.cut(_apportion(np.bincount(by.strata[by.of]), count, least), rng)
    else:
        held = stratified_mask(labels, count, rng.permutation(len(labels)), least)
    return np.flatnonzero(~held), np.flatnonzero(held)


def subset(labels: Labels, count: int, seed: int) -> Indices:
    """Draw the images that a run uses of a training set, before anything is held back: sorted indices into ``labels``.

    There are ``count``, the classes in proportion; 0 for all.
    """
    n = len(labels)
    if count > n:
        raise DataError(f"data.images={count} is more than the {n} training images there are")
    if count in (0, n):
        return np.arange(n)
    priority = numpy_generator(seed, "subset").permutation(n)
    if count <= n // 2:
        return np.flatnonzero(stratified_mask(labels, count, priority))
    return np.flatnonzero(~stratified_mask(labels, n - count, priority))


def stratified_mask(
    labels: Labels, count: int, priority: NDArray[np.generic], least: int = 0
) -> NDArray[np.bool_]:
    """Mark ``count`` of the images, at most half of n, each class in proportion, those of lowest ``priority`` first.

    The marks, bool [n], are fewer only where each class would lose its last image, and more where a class that has more
    than ``least`` would have fewer marks than that. The values of ``priority`` [n] are distinct.
    """
    totals = np.bincount(labels)
    quotas = _apportion(totals, count, least)
    order = np.lexsort((priority, labels))
    firsts = np.repeat(np.cumsum(totals) - totals, totals)
    rank = np.arange(len(labels)) - firsts  # place within the class, by priority
    mask = np.zeros(len(labels), dtype=np.bool_)
    mask[order] = rank < np.repeat(quotas, totals)
    return mask


def _apportion(totals: Indices, count: int, least: int = 0) -> Indices:
    """Divide ``count`` over classes by largest remainders, leaving each class one image; ``least`` of it, or more."""
    exact = count * totals / max(1, int(totals.sum()))
    quotas = np.floor(exact).astype(np.int64)
    room = quotas < totals - 1
    # A class without room ranks last; ties go to the lower class, so that the result is the same
    # everywhere.
    by_remainder = np.lexsort((np.arange(len(totals)), quotas - exact, ~room))
    missing = min(count - int(quotas.sum()), int(room.sum()))
    quotas[by_remainder[:missing]] += 1
    return np.maximum(quotas, np.clip(totals - 1, 0, least))


# ---- parts ---------------------------------------------------------------------------------------
# The parts of a training set in one array: of a hundred thousand of them, an array each is more than what they say.


class Parts(Sequence[Indices]):
    """K arrays of positions, as views that are made on access.

    All are in ``positions``, int64 [n], the first part's, the second's and so on; ``ends`` [K] says where each ends.
    """

    def __init__(self, positions: Indices, ends: Indices) -> None:
        self._positions, self._ends = positions, ends

    @classmethod
    def of(cls, parts: Sequence[Indices]) -> Parts:
        """Return the same parts in one array; there is one at least."""
        return cls(np.concatenate(parts), np.cumsum([len(part) for part in parts]))

    def within(self, positions: Indices) -> Parts:
        """Return the parts, which index ``positions``, as indices into what those index, int64 [m]."""
        return Parts(positions[self._positions], self._ends)

    def without(self, positions: Indices) -> Parts:
        """Return the parts without the samples at ``positions``, int64 [m]."""
        kept = np.isin(self._positions, positions, invert=True)
        return Parts(self._positions[kept], np.append(0, np.cumsum(kept))[self._ends])

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Indices: ...

    @overload
    def __getitem__(self, index: slice) -> list[Indices]: ...

    def __getitem__(self, index: int | slice) -> Indices | list[Indices]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        begin = int(self._ends[place - 1]) if place else 0
        return self._positions[begin : int(self._ends[place])]


# ---- groups --------------------------------------------------------------------------------------
# Samples that belong together, as those of one patient: who they are, and cuts that do not divide them.

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
    """Warn of groups that are ``on_both_sides``, if there are any."""
    if both:
        log.warning(
            "%s: %d of %d groups are in training and in test, so that the test accuracy includes groups seen in "
            "training: move each to one side",
            *(where, both, number),
        )


class Groups:
    """The groups of samples with ``labels`` [n], in the order of their numbers ``ids`` [n]."""

    def __init__(self, labels: Labels, ids: Labels) -> None:
        _, self.of, self.sizes = np.unique(ids, return_inverse=True, return_counts=True)
        # [groups, classes]; a group's stratum is the class that most of it has
        width = int(labels.max(initial=0)) + 1
        flat = np.bincount(self.of * width + labels, minlength=len(self.sizes) * width)
        self.counts = flat.reshape(len(self.sizes), width)
        self.strata: Labels = self.counts.argmax(1)

    def cut(self, quotas: Indices, rng: np.random.Generator) -> NDArray[np.bool_]:
        """Mark complete groups with about ``quotas`` [classes] samples of each stratum, drawn by ``rng``: bool [n].

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
        """Deal complete groups, the largest first, each to the client that lacks most of what the group has.

        ``wanted``, int64 [clients, classes], is what each would have if samples could be dealt one by one.
        """
        clients = len(wanted)
        if len(self.sizes) < clients:
            raise DataError(
                f"{len(self.sizes)} undivided groups cannot be dealt over {clients} sites: set "
                f"federation.sites to {len(self.sizes)} or less"
            )
        lacks = wanted.astype(np.float64)
        given = np.zeros(len(self.sizes), dtype=np.int64)
        number = np.zeros(clients, dtype=np.int64)
        for group in np.lexsort((rng.permutation(len(self.sizes)), -self.sizes)):
            client = int((lacks @ self.counts[group]).argmax())
            lacks[client] -= self.counts[group]
            given[group], number[client] = client, number[client] + 1
        for empty in np.flatnonzero(number == 0):  # gets the smallest group of the client with most
            richest = int(number.argmax())
            theirs = np.flatnonzero(given == richest)
            given[theirs[self.sizes[theirs].argmin()]] = empty
            number[richest], number[empty] = number[richest] - 1, 1
        owner = given[self.of]
        return Parts(
            np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner, minlength=clients))
        )
