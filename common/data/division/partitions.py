"""Partitions of a training set over clients: pure functions of (labels, K, settings, seed), and their counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from common.data.division.stratify import Groups, Indices, Parts
from common.draws.seeding import numpy_generator
from common.errors import DataError
from common.samples.dataset import Labels
from common.storage.limits import check_deadline

if TYPE_CHECKING:
    from common.settings.sections import PartitionSettings


# Kinds that give every client ``min_size`` images.
_SIZED = ("dirichlet", "dirichlet_groups", "quantity")

# A rule returns (order, owner): the image order[i] goes to the client owner[i].
Assignment = tuple[Indices, Indices]
Divider = Callable[[Labels, int, "PartitionSettings", np.random.Generator], Assignment]


def partition(
    labels: Labels,
    clients: int,
    settings: PartitionSettings,
    seed: int,
    owners: Labels | None = None,
    *,
    together: bool = False,
) -> Parts:
    """Divide a training set over ``clients``: K sorted arrays of indices into ``labels``, disjoint and none empty.

    They cover all of them, except for kind natural with fewer clients than owners. ``labels`` [n] are those left
    after the validation share, of text what its stratified cuts go by; ``owners`` [n] say for kind natural whose each
    sample is, and with ``together`` an owner's samples stay together, with any kind. Equal arguments give equal parts.
    """
    if clients < 1 or clients > len(labels):
        raise DataError(
            f"{len(labels)} images cannot be divided over {clients} sites: each needs one at "
            f"least; set federation.sites between 1 and {len(labels)}"
        )
    rng = numpy_generator(seed, "partition")
    if settings.kind == "natural":
        return _natural(owners, clients, rng)
    order, owner = _RULES[settings.kind](labels, clients, settings, rng)
    if together and owners is not None:
        return _whole(labels, order, owner, clients, settings, owners, rng)
    by_client = np.lexsort((order, owner))
    return Parts(order[by_client], np.cumsum(np.bincount(owner, minlength=clients)))


def _whole(
    labels: Labels,
    order: Indices,
    owner: Indices,
    clients: int,
    settings: PartitionSettings,
    owners: Labels,
    rng: np.random.Generator,
) -> Parts:
    """Deal complete groups so that each client has about what the rule gives it of each class."""
    classes = int(labels.max(initial=0)) + 1
    wanted = np.bincount(owner * classes + labels[order], minlength=clients * classes)
    parts = Groups(labels, owners).deal(wanted.reshape(clients, classes), rng)
    smallest = min(len(part) for part in parts)
    if settings.kind in _SIZED and smallest < settings.min_size:
        raise DataError(
            f"with undivided groups a site has {smallest} samples, fewer than partition.min_size="
            f"{settings.min_size}: set partition.min_size to {smallest} or less, or lower federation.sites"
        )
    return parts


def _natural(owners: Labels | None, clients: int, rng: np.random.Generator) -> Parts:
    """Give each client what one owner has; of more owners than clients, a draw without replacement.

    Clients are in the owners' order. An owner of whom nothing is left is no client.
    """
    if owners is None:
        raise DataError(
            "partition.kind=natural needs a data set whose samples have owners, such as a writer or a user: choose "
            f"{', '.join(NATURAL)}, your own set with data.group or images.group, or another partition.kind"
        )
    present, sizes = np.unique(owners, return_counts=True)
    if clients > len(present):
        raise DataError(
            f"partition.kind=natural has {len(present)} owners of training samples for {clients} sites; set "
            f"federation.sites to {len(present)} or less"
        )
    chosen = np.arange(clients)
    if clients < len(present):
        chosen = np.sort(rng.choice(len(present), clients, replace=False))
    parts = np.split(np.argsort(owners, kind="stable"), np.cumsum(sizes)[:-1])
    return Parts.of([parts[owner] for owner in chosen])


def _iid(
    labels: Labels, clients: int, settings: PartitionSettings, rng: np.random.Generator
) -> Assignment:
    """Deal shuffled images out; sizes differ by one at most."""
    return rng.permutation(len(labels)), np.arange(len(labels)) * clients // len(labels)


def _quantity(
    labels: Labels, clients: int, settings: PartitionSettings, rng: np.random.Generator
) -> Assignment:
    """Deal shuffled images out in shares drawn from one Dirichlet(alpha) over the clients."""

    def draw() -> Indices:
        return divide(len(labels), dirichlet(settings.alpha, clients, rng))[:, None]

    counts = draw_until_large_enough(draw, len(labels), clients, settings)
    return rng.permutation(len(labels)), np.repeat(np.arange(clients), counts[:, 0])


def _dirichlet_per_class(
    labels: Labels, clients: int, settings: PartitionSettings, rng: np.random.Generator
) -> Assignment:
    """Divide each class over the clients in shares drawn from its own Dirichlet(alpha).

    With the balance rule a client that already holds N/K images, from the classes before, gets no
    more of the class. Its shares are drawn from the Dirichlet over the clients still open, which
    is the law of a full draw with the others struck out and the rest renormalised, without that
    form's division by zero at small alpha.
    """
    totals = np.bincount(labels)

    def draw() -> Indices:
        counts = np.zeros((clients, len(totals)), dtype=np.int64)
        held = np.zeros(clients, dtype=np.int64)
        for label, total in enumerate(totals):
            still_open = np.arange(clients)
            if settings.balance:
                still_open = np.flatnonzero(held * clients < len(labels))
            if total:
                shares = dirichlet(settings.alpha, len(still_open), rng)
                counts[still_open, label] = divide(int(total), shares)
                held += counts[:, label]
        return counts

    counts = draw_until_large_enough(draw, len(labels), clients, settings)
    return _deal_classes(labels, counts, rng)


def _dirichlet_groups(
    labels: Labels, clients: int, settings: PartitionSettings, rng: np.random.Generator
) -> Assignment:
    """Deal shuffled images to groups of clients, divide each group's by Dirichlet, and cut all into equal parts.

    As in the public code of FedDF (Lin et al. 2020), whose groups have ten clients. A group's images lie client by
    client and within one class by class; the equal parts are cut of that order, so that a client may begin with the
    last images of its neighbour. Sizes differ by one at most.
    """
    size = settings.group or clients
    if size > clients:
        raise DataError(
            f"partition.group={size} is more than the {clients} sites there are: set it to {clients} or less, or to "
            "0 for one group of all"
        )
    if len(labels) // clients < settings.min_size:
        raise DataError(
            f"{len(labels)} images in {clients} equal parts are fewer than partition.min_size={settings.min_size} "
            f"each; set it to {len(labels) // clients} or less, or lower federation.sites"
        )
    firsts = np.arange(0, clients, size)
    ends = np.append(firsts[1:], clients)
    # where the clients' equal parts end: a group has what its clients' parts have together
    cuts = -(-ends * len(labels) // clients)
    pieces = []
    for images, members in zip(
        np.split(rng.permutation(len(labels)), cuts[:-1]), ends - firsts, strict=True
    ):
        counts = _draw_group(labels[images], int(members), settings, rng)
        order, owner = _deal_classes(labels[images], counts, rng)
        pieces.append(images[order[np.lexsort((labels[images][order], owner))]])
    return np.concatenate(pieces), np.arange(len(labels)) * clients // len(labels)


# Draws of a group that are made at a time, as arrays: it is the number's stream that depends on it.
_AT_A_TIME = 128


def _draw_group(
    labels: Labels, clients: int, settings: PartitionSettings, rng: np.random.Generator
) -> Indices:
    """Return counts [clients, classes] of the first draw that leaves every client half of its fair share."""
    totals, least, best = np.bincount(labels), len(labels) // (2 * clients), 0
    for done in range(0, settings.max_draws, _AT_A_TIME):
        check_deadline()
        counts = _draws(totals, clients, settings.alpha, rng)[: settings.max_draws - done]
        smallest = counts.sum(axis=2).min(axis=1)
        if len(enough := np.flatnonzero(smallest >= least)):
            chosen: Indices = counts[enough[0]]
            return chosen
        best = max(best, int(smallest.max()))
    raise _none_enough(
        settings,
        f"division in which each of {clients} sites of a group has half of its fair share, {least} images",
        best,
        f"raise partition.max_draws or partition.alpha, or set partition.group to fewer than {clients}",
    )


def _none_enough(settings: PartitionSettings, wanted: str, best: int, remedy: str) -> DataError:
    return DataError(
        f"{settings.max_draws} draws of partition.kind={settings.kind} with partition.alpha={settings.alpha} gave no "
        f"{wanted} (the best had a smallest site of {best}); {remedy}"
    )


def _draws(totals: Indices, clients: int, alpha: float, rng: np.random.Generator) -> Indices:
    """Return draws of `_dirichlet_per_class` with the balance rule at once, int64 [_AT_A_TIME, clients, classes].

    A gamma variate of a small alpha is nothing in floats; its logarithm, log Gamma(alpha + 1) + log(U) / alpha, is
    not. Normalised over those still open it is a Dirichlet over them.
    """
    examples = int(totals.sum())
    counts = np.zeros((_AT_A_TIME, clients, len(totals)), dtype=np.int64)
    held = np.zeros((_AT_A_TIME, clients), dtype=np.int64)
    for label in np.flatnonzero(totals):
        logs = np.log(rng.standard_gamma(alpha + 1, held.shape))
        with np.errstate(over="ignore"):
            logs += np.log1p(-rng.random(held.shape)) / alpha
        logs[held * clients >= examples] = -np.inf
        largest = logs.max(axis=1, keepdims=True)
        if not np.isfinite(largest).all():
            raise _too_extreme(alpha)
        shares = np.exp(logs - largest)
        ends = np.cumsum(shares, axis=1)
        ends = np.rint(ends * (totals[label] / ends[:, -1:])).astype(np.int64)
        counts[:, :, label] = np.diff(ends, axis=1, prepend=0)
        held += counts[:, :, label]
    return counts


def _by_class(
    labels: Labels, clients: int, settings: PartitionSettings, rng: np.random.Generator
) -> Assignment:
    """Give each client a fixed number of classes and divide a class evenly over those that hold it.

    Each client in turn takes the classes that the fewest hold so far, ties by lot; so numbers of
    holders differ by one at most.
    """
    present = np.unique(labels)
    wanted = settings.classes_per_client
    if wanted > len(present):
        raise DataError(
            f"partition.classes_per_client={wanted}, but there are {len(present)} classes; set it "
            f"to {len(present)} or less"
        )
    if clients * wanted < len(present):
        raise DataError(
            f"{clients} sites with {wanted} classes each leave some of the {len(present)} "
            f"classes to no site; set partition.classes_per_client to {-(-len(present) // clients)} "
            "or more, or raise federation.sites"
        )
    holds = np.zeros((clients, len(present)), dtype=np.bool_)
    for client in range(clients):
        fewest = np.lexsort((rng.random(len(present)), holds.sum(axis=0)))
        holds[client, fewest[:wanted]] = True
    totals = np.bincount(labels)
    counts = np.zeros((clients, len(totals)), dtype=np.int64)
    for column, label in enumerate(present):
        holders = np.flatnonzero(holds[:, column])
        counts[holders, label] = divide(int(totals[label]), np.full(len(holders), 1 / len(holders)))
    empty = np.flatnonzero(counts.sum(axis=1) == 0)
    if len(empty):
        raise DataError(
            f"partition.classes_per_client={wanted} leaves site {empty[0]} without an image: "
            "more sites share its classes than these have images; raise "
            "partition.classes_per_client or lower federation.sites"
        )
    return _deal_classes(labels, counts, rng)


def _shards(
    labels: Labels, clients: int, settings: PartitionSettings, rng: np.random.Generator
) -> Assignment:
    """Sort the images by class, cut them into K x s equal runs and deal each client s of them."""
    shards = clients * settings.shards_per_client
    if shards > len(labels):
        raise DataError(
            f"{len(labels)} images cannot be cut into {clients} x {settings.shards_per_client} "
            "shards; lower partition.shards_per_client or federation.sites"
        )
    order = np.lexsort((rng.permutation(len(labels)), labels))
    shard = np.arange(len(labels)) * shards // len(labels)
    return order, (rng.permutation(shards) % clients)[shard]


_RULES: dict[str, Divider] = {
    "iid": _iid,
    "dirichlet": _dirichlet_per_class,
    "dirichlet_groups": _dirichlet_groups,
    "by_class": _by_class,
    "shards": _shards,
    "quantity": _quantity,
}


def _deal_classes(labels: Labels, counts: Indices, rng: np.random.Generator) -> Assignment:
    """Deal each class's shuffled images out by ``counts`` [K, classes]."""
    order = np.lexsort((rng.permutation(len(labels)), labels))
    clients, classes = counts.shape
    owner = np.repeat(np.tile(np.arange(clients), classes), counts.T.ravel())
    return order, owner


# ---- counts --------------------------------------------------------------------------------------
# Who holds what: class counts of a partition, as numbers and as a table to read.

# Beyond this many classes a column each no longer fits a terminal.
_MAX_COLUMNS = 20
_NAMED = 5


def class_counts(labels: Labels, parts: Sequence[Indices], classes: int) -> Indices:
    """Count each part's images by class: int64 [K, classes]."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


def lacking(labels: Labels, classes: Sequence[str], what: str) -> str:
    """Return a sentence on the classes without a sample among ``labels``, by which a model is evaluated; else empty."""
    counts = np.bincount(labels, minlength=len(classes))
    absent = [classes[label] for label in np.flatnonzero(counts == 0).tolist()]
    if not absent or not len(labels):
        return ""
    more = f" and {len(absent) - _NAMED} more" if absent[_NAMED:] else ""
    named = ", ".join(absent[:_NAMED]) + more
    judged = len(classes) - len(absent)
    return f"no {what} of {named}: the accuracy is over {judged} of {len(classes)} classes"


def report(
    counts: Indices, classes: Sequence[str], unit: str = "images", sites: Sequence[str] = ()
) -> str:
    """Return a table of ``counts`` [K, classes]: a line a site and their sum, in ``unit``.

    With more than 20 classes a line tells the number of classes held and the largest one instead
    of every count; with one column, as for text, only the sums. Without the names of the ``sites``
    they are called partitions.
    """
    head: Sequence[str] = ("classes", "largest class")
    if len(classes) <= _MAX_COLUMNS:
        head = classes if len(classes) > 1 else ()

    def cells(row: Indices) -> list[str]:
        if len(classes) <= _MAX_COLUMNS:
            return [str(count) for count in row[: len(head)]]
        return [str(np.count_nonzero(row)), f"{classes[int(row.argmax())]} {row.max()}"]

    rows = [*counts, counts.sum(axis=0)]
    names = [*(sites or (f"partition-{site}" for site in range(len(counts)))), "all"]
    named = zip(names, rows, strict=True)
    table = [["site", unit, *head], *([name, str(row.sum()), *cells(row)] for name, row in named)]
    first, *widths = (max(map(len, column)) for column in zip(*table, strict=True))
    lines = ([n.ljust(first), *map(str.rjust, row, widths)] for n, *row in table)
    return "\n".join(map("  ".join, lines))


# ---- draws ---------------------------------------------------------------------------------------
# Draws of unequal shares, repeated until every client has enough.


def dirichlet(alpha: float, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw shares [clients] from the symmetric Dirichlet(alpha); DataError if floats cannot draw with alpha."""
    shares = rng.dirichlet(np.full(clients, alpha))
    if not np.isclose(shares.sum(), 1):  # not a number, or all zero where the sum overflowed
        raise _too_extreme(alpha)
    return shares


def _too_extreme(alpha: float) -> DataError:
    return DataError(
        f"partition.alpha={alpha} is too extreme to draw with; use partition.kind=iid for an "
        "even partition, or partition.kind=by_class with one class a site for the other "
        "extreme"
    )


def divide(total: int, shares: NDArray[np.float64]) -> Indices:
    """Cut ``total`` images at the rounded cumulative shares; the parts sum to ``total`` exactly."""
    ends = np.rint(np.cumsum(shares) * total).astype(np.int64)
    ends[-1] = total
    return np.diff(np.minimum(ends, total), prepend=0)


def draw_until_large_enough(
    draw: Callable[[], Indices], images: int, clients: int, settings: PartitionSettings
) -> Indices:
    """Repeat a draw of counts [K, classes] until every client has ``min_size`` images.

    A client without any image is refused for any ``min_size``.
    """
    least = max(1, settings.min_size)
    if clients * least > images:
        raise DataError(
            f"{clients} sites with partition.min_size={settings.min_size} need {clients * least} "
            f"images, there are {images}; set partition.min_size to {images // clients} or less, "
            "or lower federation.sites"
        )
    best = 0
    for _ in range(settings.max_draws):
        check_deadline()
        counts = draw()
        smallest = int(counts.sum(axis=1).min())
        if smallest >= least:
            return counts
        best = max(best, smallest)
    lower = (
        "partition.min_size or federation.sites" if settings.min_size > 1 else "federation.sites"
    )
    raise _none_enough(
        settings,
        f"partition in which each of {clients} sites has {least} images",
        best,
        f"raise partition.alpha or partition.max_draws, or lower {lower}",
    )


NATURAL = ("dsprites", "femnist", "reddit", "reddit2k")
"""Those whose training samples have owners, for ``partition.kind=natural``."""
