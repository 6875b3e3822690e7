"""How many of the images that were sent equal, or nearly equal, a real one of the site that sent them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

EQUAL = 1e-4
"""Up to this distance, the root of the mean squared difference of values from 0 to 1, two images are equal."""

NEAR = 0.05
"""Up to this one they nearly are: a photograph with noise on it that hides nobody."""

FIGURES = {"images": "images-sent", "equal": "images-equal", "near": "images-near"}
"""The names under which a site reports each number."""


@dataclass(frozen=True)
class Copies:
    """A count: ``images`` sent, ``equal`` to a real one of the sender's, and ``near`` to one but not equal."""

    images: int
    equal: int
    near: int

    def figures(self) -> dict[str, float]:
        """Return what a site reports beside its upload."""
        return {FIGURES[name]: float(value) for name, value in asdict(self).items()}

    @classmethod
    def told(cls, by_site: Iterable[Mapping[str, float]]) -> Self | None:
        """Return the sum of what sites reported beside their uploads; None where none of them counted.

        A site's figures that are no counts, or do not go together, are left out: they are the site's word.
        """
        rows = ([figures.get(key) for key in FIGURES.values()] for figures in by_site)
        return cls._sum(rows)

    @classmethod
    def recorded(cls, lines: Iterable[Mapping[str, Any]]) -> Self | None:
        """Return the sum over the rounds' lines of a record; None where no round has a count."""
        kept = (line.get("copies") for line in lines)
        rows = ([row.get(name) for name in FIGURES] for row in kept if isinstance(row, Mapping))
        return cls._sum(rows)

    @classmethod
    def _sum(cls, rows: Iterable[list[Any]]) -> Self | None:
        sane = [row for row in rows if _is_count(row)]
        if not sane:
            return None
        return cls(*(int(sum(column)) for column in zip(*sane, strict=True)))

    @property
    def found(self) -> bool:
        """Whether there is a copy, or nearly one."""
        return self.equal + self.near > 0

    def sentence(self) -> str:
        """Say it."""
        if not self.found:
            return f"Copies: 0 of {self.images:,} sent images are within {NEAR:g} RMS of a real one (self-reported)."
        return (
            f"Copies: {self.equal:,} of {self.images:,} sent images equal a real one of their site (within {EQUAL:g} "
            f"RMS), {self.near:,} more are within {NEAR:g} RMS (self-reported)."
        )


def _is_count(row: list[Any]) -> bool:
    numbers = [v for v in row if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(FIGURES) or any(not 0 <= v <= 1e9 or v != int(v) for v in numbers):
        return False
    images, equal, near = numbers
    return bool(equal + near <= images)
