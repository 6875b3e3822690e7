"""Who holds what: class counts of a partition, as numbers and as a table to read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from common.data.division.stratify import Indices
from common.samples.dataset import Labels

# Beyond this many classes a column each no longer fits a terminal.
_MAX_COLUMNS = 20
_NAMED = 5


def class_counts(labels: Labels, parts: Sequence[Indices], classes: int) -> Indices:
    """Count each part's images by class.

    Parameters
    ----------
    labels
        int64 [n], each in 0..classes-1.
    parts
        K arrays of indices into ``labels``.
    classes
        how many classes the data set has.

    Returns
    -------
    int64 [K, classes].
    """
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


def lacking(labels: Labels, classes: Sequence[str], what: str) -> str:
    """Return a sentence on the classes without a sample among ``labels``, by which a model is judged; else nothing."""
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
    rows = [*counts, counts.sum(axis=0)]
    names = [*(sites or (f"partition-{site}" for site in range(len(counts)))), "all"]
    if len(classes) == 1:
        header = ["site", unit]
        cells = [[str(row.sum())] for row in rows]
    elif len(classes) <= _MAX_COLUMNS:
        header = ["site", unit, *classes]
        cells = [[str(row.sum()), *(str(count) for count in row)] for row in rows]
    else:
        header = ["site", unit, "classes", "largest class"]
        cells = [
            [
                str(row.sum()),
                str(np.count_nonzero(row)),
                f"{classes[int(row.argmax())]} {row.max()}",
            ]
            for row in rows
        ]
    table = [header, *([name, *row] for name, row in zip(names, cells, strict=True))]
    widths = [max(len(line[column]) for line in table) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        )
        for line in table
    )
