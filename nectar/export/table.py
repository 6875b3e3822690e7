"""A score as text."""

from __future__ import annotations

from collections.abc import Sequence

from nectar.export.scoring import Score

#: more classes than this make a matrix that no terminal shows; the commonest confusions stand for it
_MAX_MATRIX = 20
_MAX_PAIRS = 10


def as_text(score: Score) -> str:
    """Return accuracy and loss, a line a class, and the confusions."""
    head = f"accuracy {score.accuracy:.4f}, loss {score.loss:.4f}, {score.images} images"
    small = len(score.classes) <= _MAX_MATRIX
    return "\n\n".join([head, _classes(score), _matrix(score) if small else _pairs(score)])


def _classes(score: Score) -> str:
    rows = [
        [
            name,
            str(score.of_class(label)),
            _figure(score.recall(label)),
            _figure(score.precision(label)),
        ]
        for label, name in enumerate(score.classes)
    ]
    title = "recall: the share of a class's images that was recognised, its own accuracy"
    return "\n".join([title, _table([["class", "images", "recall", "precision"], *rows])])


def _matrix(score: Score) -> str:
    """Return a row a true class; columns are what its images were taken for, by number where names are long."""
    short = all(len(name) <= 6 for name in score.classes)
    width = len(str(len(score.classes) - 1))
    marks = list(score.classes) if short else [f"{i:{width}d}" for i in range(len(score.classes))]
    names = marks if short else [f"{m} {n}" for m, n in zip(marks, score.classes, strict=True)]
    rows = [
        [name, *(str(count) if count else "." for count in row)]
        for name, row in zip(names, score.confusion, strict=True)
    ]
    title = "rows: the true class; columns: what the model took its images for"
    return "\n".join([title, _table([["", *marks], *rows])])


def _pairs(score: Score) -> str:
    wrong = [
        (count, true, taken)
        for true, row in enumerate(score.confusion)
        for taken, count in enumerate(row)
        if count and taken != true
    ]
    wrong.sort(key=lambda pair: (-pair[0], pair[1:]))
    lines = [
        f"{count} of {score.of_class(true)} {score.classes[true]} taken for {score.classes[taken]}"
        for count, true, taken in wrong[:_MAX_PAIRS]
    ]
    return "\n".join(["the commonest confusions:", *lines]) if lines else "no confusions"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Align the first column left and the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
