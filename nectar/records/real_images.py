"""The real images that a run's sites had, and the one most like each that was sent: what shows a leak.

`real_images` finds them for a report and for an audit, `closest_by_site` says how near each site's images come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.data.division.partitions import class_counts
from common.data.published.sources import SOURCES
from common.data.user.reading import is_at_hand
from common.division import Division
from common.errors import NectarError
from common.samples.dataset import Dataset, DatasetInfo
from common.samples.inputs import samples
from common.sites import ALL_SITES
from nectar.records.record import RunRecord
from nectar.records.record_imports import NotNamed
from nectar.records.synthetic_sets import contrast_of
from server_app.pictures import on_screen

Measure = Callable[[Tensor, Tensor], Tensor]
"""The figures of all pairs of queries [n, d] and rows [m, d]: [n, m]."""

#: real images compared at a time
_CHUNK = 4096
#: real images of a site for which the best figure with its others is computed
_ASKED = 100


@dataclass(frozen=True)
class Nearest:
    """For n images: the nearest real ones [n, C, H, W], values 0 to 1, and how far they are.

    A distance is the root of the mean squared difference over all pixel values: 0 is the same image. ``typical`` is
    the median of that distance from a real image of the site to its nearest other one, None for a single image.
    """

    images: Tensor
    distances: list[float]
    typical: float | None

    @property
    def captions(self) -> list[str]:
        """Each image's distance."""
        return [f"{value:.3f}" for value in self.distances]


@dataclass(frozen=True)
class Control:
    """Another site's images, asked the same: what is reached there is no memory of the site that sent.

    ``site`` is the one whose numbers of images by class are nearest; ``held`` is how many it has, ``correlations``
    are the sent images' own with their most similar there.
    """

    site: str
    held: int
    correlations: list[float]


@dataclass(frozen=True)
class MostCorrelated:
    """For n images: the most similar real ones [n, C, H, W], values 0 to 1, and how alike they are.

    Likeness is Pearson's correlation over all pixel values, which no change of contrast or brightness moves. The
    most similar image is the one whose correlation is furthest from 0: -1 is the same image as a negative, which
    shows as much. ``typical`` is the median size of that correlation of a real image of the site with its most similar
    other one, None for a single image; ``held`` is the number of the site's images, ``control``
    None if there is no other site.
    """

    images: Tensor
    correlations: list[float]
    typical: float | None
    held: int
    control: Control | None

    @property
    def captions(self) -> list[str]:
        """Each image's correlation."""
        return [f"{value:.2f}" for value in self.correlations]


@dataclass(frozen=True)
class Closest:
    """The image of a site that lies nearest to one of its real ones: distances as in `Nearest`.

    ``typical`` is that among the site's real images, ``control`` the same image's from another site's nearest; None
    if there is no other image, or site.
    """

    site: str
    distance: float
    typical: float | None
    control: float | None


@dataclass(frozen=True)
class RealImages:
    """The images that each site held, of a data set of which ``shares`` have shares, a site since forgotten too."""

    dataset: Dataset
    parts: dict[str, NDArray[np.int64]]
    shares: int

    def nearest(self, site: str, images: Tensor) -> Nearest | None:
        """Return the nearest of ``site``'s images to each of ``images`` (values 0 to 1); None for an unknown site.

        ``ALL_SITES`` has the images of all.
        """
        found = self._best(site, images, _distances, torch.neg, float("inf"))
        return None if found is None else Nearest(found[1], found[0].tolist(), found[2])

    def most_correlated(self, site: str, images: Tensor) -> MostCorrelated | None:
        """Return the most similar of ``site``'s images to each of ``images`` [n, C, H, W]; None for an unknown site."""
        if site not in self.parts:
            return None
        found = self._best(site, images, _correlations, torch.abs, 0.0)
        if found is None:
            return None
        control, other = None, self.most_like(site)
        if other and (theirs := self._best(other, images, _correlations, torch.abs, 0.0)):
            control = Control(other, len(self.parts[other]), theirs[0].tolist())
        held = len(self.parts[site])
        return MostCorrelated(found[1], found[0].tolist(), found[2], held, control)

    def _best(
        self,
        site: str,
        images: Tensor,
        measure: Measure,
        rank: Callable[[Tensor], Tensor],
        nothing: float,
    ) -> tuple[Tensor, Tensor, float | None] | None:
        """Return each image's best figure, the real image that it is of, and the median of the site's own images.

        The median is over the size of the best figure of a real image with its site's others; None for a single image.
        """
        indices = self._held(site)
        if indices is None or not len(indices) or not len(images):
            return None
        asked = _spread(len(indices))
        queries = torch.cat([images.flatten(1), self._pixels(indices[asked]).flatten(1)])
        selves = torch.tensor([-1] * len(images) + asked.tolist())
        best, at = _search(queries, selves, self._chunks(indices), measure, rank, nothing)
        count = len(images)
        typical = median(best[count:].abs().tolist()) if len(indices) > 1 else None
        return best[:count], self._pixels(indices[at[:count].numpy()]), typical

    def _held(self, site: str) -> NDArray[np.int64] | None:
        if site == ALL_SITES:
            return np.concatenate(list(self.parts.values()))
        return self.parts.get(site)

    def closest(self, site: str, images: Tensor) -> Closest | None:
        """Return how near the nearest of ``images`` comes to a real one of ``site``; None for a site unknown."""
        found = self.nearest(site, images)
        if found is None:
            return None
        at = min(range(len(found.distances)), key=found.distances.__getitem__)
        other = self.most_like(site) if site in self.parts else None
        theirs = self.nearest(other, images[at : at + 1]) if other is not None else None
        control = theirs.distances[0] if theirs is not None else None
        return Closest(site, found.distances[at], found.typical, control)

    def most_like(self, site: str) -> str | None:
        """Return the other site whose numbers of images by class are nearest; None if there is none."""
        others = [name for name, part in self.parts.items() if name != site and len(part)]
        if not others:
            return None
        labels, classes = self.dataset.train.labels, len(self.dataset.info.classes)
        own, *theirs = class_counts(labels, [self.parts[s] for s in (site, *others)], classes)
        return others[int(np.abs(np.stack(theirs) - own).sum(1).argmin())]

    def _chunks(self, indices: NDArray[np.int64]) -> Iterator[tuple[int, Tensor]]:
        for start in range(0, len(indices), _CHUNK):
            yield start, self._pixels(indices[start : start + _CHUNK]).flatten(1)

    def _pixels(self, indices: NDArray[np.int64]) -> Tensor:
        raw = samples(self.dataset.train, self.dataset.info, indices).raw
        return raw.to(torch.float32) / self.dataset.info.scale


def _spread(count: int) -> NDArray[np.int64]:
    """Return at most ``_ASKED`` positions below ``count``, evenly spread."""
    return np.linspace(0, count - 1, min(_ASKED, count)).astype(np.int64)


def _correlations(queries: Tensor, rows: Tensor) -> Tensor:
    """Return Pearson's correlations; of a row of one value only they are 0."""
    return (_standard(queries) @ _standard(rows).T).clamp(-1, 1)


def _standard(rows: Tensor) -> Tensor:
    """Return rows with mean 0 and length 1; rows of one value only become 0."""
    centred = rows - rows.mean(1, keepdim=True)
    length = centred.norm(dim=1, keepdim=True)
    flat = rows.amax(1, keepdim=True) == rows.amin(1, keepdim=True)
    return torch.where(flat, 0.0, centred / length)


def _distances(queries: Tensor, rows: Tensor) -> Tensor:
    """Return roots of mean squared differences, exactly: by matrix products those of equal images would not be 0."""
    exact: Tensor = torch.cdist(queries, rows, compute_mode="donot_use_mm_for_euclid_dist")
    return exact.div(queries.shape[1] ** 0.5)


def _search(
    queries: Tensor,
    selves: Tensor,
    chunks: Iterator[tuple[int, Tensor]],
    measure: Measure,
    rank: Callable[[Tensor], Tensor],
    nothing: float,
) -> tuple[Tensor, Tensor]:
    """Return the figure of the best row of all chunks but the query's own, and which row it is.

    Parameters
    ----------
    measure, rank : callable
        The figures of all pairs, and how good each is.
    nothing : float
        The figure of a query without a row.
    """
    best = torch.full((len(queries),), nothing)
    at = torch.zeros(len(queries), dtype=torch.int64)
    for start, rows in chunks:
        found = measure(queries, rows)
        inside = (selves >= start) & (selves < start + len(rows))
        found[inside.nonzero().flatten(), selves[inside] - start] = nothing
        index = rank(found).argmax(dim=1)
        value = found.gather(1, index[:, None])[:, 0]
        better = rank(value) > rank(best)
        best, at = torch.where(better, value, best), torch.where(better, index + start, at)
    return best, at


def real_images(record: RunRecord) -> RealImages | str:
    """Return the sites' images, or the reason why they are not at hand. Downloads nothing."""
    if record.partition.get("unlisted"):
        return "the record of so many sites does not say which of them held what"
    if not record.counted:
        return "the sites' images never were on this side"
    try:
        config = record.config
    except NotNamed:
        raise
    except NectarError:
        return "this release does not know the run's configuration"
    try:
        source = SOURCES.get(config.dataset)
        if source is not None and source.missing(config.data_dir):
            return f"the data set {config.dataset} is not in the run's data directory"
        if config.site_places:
            return "the sites read them in folders of their own"
        if not is_at_hand(config.dataset, config.data_dir, config.data.size):
            return f"the data set {config.dataset} is not in the run's data directory"
        recorded = record.provenance.get("data", {}).get("sha256")
        found = []
        for shares in dict.fromkeys((len(record.sites), config.federation.sites)):
            division = Division(config.with_sites(shares))
            if division.dataset.checksum != recorded:
                return "the data set that lies in the run's data directory is another one today"
            found.append(_matched(record, division, shares))
        best = max(found, key=lambda each: len(each.parts))
    except NectarError as error:
        return f"they could not be read ({error})"
    return best if best.parts else "this release divides the data otherwise than the run did"


def _matched(record: RunRecord, division: Division, shares: int) -> RealImages:
    """Give each site its part of ``shares``, if it has the classes that the record says."""
    parts = division.partition(shares)
    labels, classes = division.dataset.train.labels, len(division.run.info.classes)
    counts = class_counts(labels, parts, classes).tolist()
    by_site: dict[str, NDArray[np.int64]] = {}
    for name, row in record.sites.items():
        index = row.get("partition", -1)
        known = type(index) is int and 0 <= index < len(parts)
        if known and counts[index] == row.get("classes"):
            by_site[name] = parts[index]
    return RealImages(division.dataset, by_site, shares)


def closest_by_site(record: RunRecord, info: DatasetInfo | None) -> dict[str, Closest]:
    """Return how near each site's last images come to a real one of its own; empty without images, or real ones."""
    try:
        _, sets = record.synthetic()
        if not sets or info is None or contrast_of(record.last_sets) != "pixels":
            return {}
    except NectarError:
        return {}
    real = real_images(record)
    if isinstance(real, str):
        return {}
    found = {s: real.closest(s, on_screen(sent.images, info, "pixels")) for s, sent in sets.items()}
    return {site: one for site, one in found.items() if one is not None}
