"""A run's real images, and the one most similar to each image that was sent, which reveals leaks.

`real_images` finds them for a report and for an audit; `closest_by_site` returns the smallest distance of each site.
"""

from __future__ import annotations

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
from common.wire.image_codecs import Contrast
from nectar.records.record import RunRecord
from nectar.records.record_imports import NotNamed
from nectar.records.synthetic_sets import contrast_of
from server_app.pictures import on_screen

#: real images compared at a time
_CHUNK = 4096
#: number of a site's real images from which the typical distance is computed
_ASKED = 100


@dataclass(frozen=True)
class Control:
    """The same figures for another site's images, for comparison: similarity to those is not a leak.

    ``site`` is the one whose numbers of images by class are nearest; ``held`` is how many it has, ``figures`` are the
    sent images' own with their most similar there.
    """

    site: str
    held: int
    figures: list[float]


@dataclass(frozen=True)
class Nearest:
    """For n images: the most similar real ones [n, C, H, W], values 0 to 1, and a figure of their similarity.

    The figure of images compared as ``pixels`` is a distance, the root of the mean squared difference over all pixel
    values: 0 is the same image. That of ``stretched`` ones is Pearson's correlation over all pixel values, which no
    change of contrast or brightness moves; the most similar image is the one whose correlation is furthest from 0: -1
    is the same image as a negative, which shows as much.

    ``typical`` is the median of the figure, without its sign, of a real image of the site with its most similar other
    one, None for a single image; ``held`` is the number of the site's images. ``control`` is that of correlations,
    None if there is no other site.
    """

    images: Tensor
    figures: list[float]
    typical: float | None
    held: int = 0
    control: Control | None = None


@dataclass(frozen=True)
class Closest:
    """The image of a site that is nearest to one of its real ones: distances as in `Nearest`.

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

    def nearest(self, site: str, images: Tensor, contrast: Contrast = "pixels") -> Nearest | None:
        """Return the most similar of ``site``'s images to each of ``images`` [n, C, H, W]; None for a site unknown.

        ``images`` have values 0 to 1 as ``pixels``, any as ``stretched``. ``ALL_SITES`` means all sites' images.
        """
        indices = self.parts.get(site)
        if site == ALL_SITES:
            indices = np.concatenate(list(self.parts.values()))
        if indices is None or not len(indices) or not len(images):
            return None
        n, asked = len(images), _spread(len(indices))
        queries = torch.cat([images, self._pixels(indices[asked])])
        selves = torch.tensor([-1] * n + asked.tolist())
        figures, at = self._search(queries, selves, indices, contrast)
        among = figures[n:].abs()[figures[n:].isfinite()].tolist()
        return Nearest(
            self._pixels(indices[at[:n].numpy()]),
            figures[:n].tolist(),
            median(among) if among else None,
            len(indices),
            self._control(site, images) if contrast == "stretched" else None,
        )

    def closest(self, site: str, images: Tensor) -> Closest | None:
        """Return the smallest distance of ``images`` to a real one of ``site``; None for an unknown site."""
        found = self.nearest(site, images)
        if found is None:
            return None
        at = min(range(len(found.figures)), key=found.figures.__getitem__)
        other = self.most_like(site) if site in self.parts else None
        elsewhere = self.nearest(other, images[at : at + 1]) if other is not None else None
        control = elsewhere.figures[0] if elsewhere is not None else None
        return Closest(site, found.figures[at], found.typical, control)

    def most_like(self, site: str) -> str | None:
        """Return the other site with the most similar class counts, or None if there is no other."""
        others = [name for name, part in self.parts.items() if name != site and len(part)]
        if not others:
            return None
        labels, classes = self.dataset.train.labels, len(self.dataset.info.classes)
        own, *theirs = class_counts(labels, [self.parts[s] for s in (site, *others)], classes)
        return others[int(np.abs(np.stack(theirs) - own).sum(1).argmin())]

    def _control(self, site: str, images: Tensor) -> Control | None:
        other = self.most_like(site)
        if other is None:
            return None
        none, part = torch.full((len(images),), -1), self.parts[other]
        figures, _ = self._search(images, none, part, "stretched")
        return Control(other, len(part), figures.tolist())

    def _search(
        self, queries: Tensor, selves: Tensor, indices: NDArray[np.int64], contrast: Contrast
    ) -> tuple[Tensor, Tensor]:
        """Return each query's figure with the best of the images ``indices``, and which it is.

        ``selves`` [n] is the index of the query itself, which is skipped; without another image the figure is infinite.
        """
        queries = queries.flatten(1)
        best = figures = torch.full((len(queries),), torch.inf)
        at = torch.zeros(len(queries), dtype=torch.int64)
        for start in range(0, len(indices), _CHUNK):
            rows = self._pixels(indices[start : start + _CHUNK]).flatten(1)
            found = _FIGURES[contrast](queries, rows)
            distance = found if contrast == "pixels" else -found.abs()
            within = (selves >= start) & (selves < start + len(rows))
            distance[within.nonzero().flatten(), selves[within] - start] = torch.inf
            index = distance.argmin(1, keepdim=True)
            value = distance.gather(1, index)[:, 0]
            better = value < best
            best = torch.where(better, value, best)
            figures = torch.where(better, found.gather(1, index)[:, 0], figures)
            at = torch.where(better, index[:, 0] + start, at)
        return figures, at

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
    """Return distances by exact differences: by matrix products that of equal images would not be 0."""
    distances: Tensor = torch.cdist(queries, rows, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.div_(queries.shape[1] ** 0.5)


_FIGURES = {"pixels": _distances, "stretched": _correlations}


def real_images(record: RunRecord) -> RealImages | str:
    """Return the sites' images, or the reason why they are not at hand. Downloads nothing."""
    if record.partition.get("unlisted"):
        return "the record does not list what each of so many sites held"
    if not record.counted:
        return "the sites' images were never on this machine"
    try:
        config = record.config
    except NotNamed:
        raise
    except NectarError:
        return "this release cannot read the run's configuration"
    try:
        source = SOURCES.get(config.dataset)
        if source is not None and source.missing(config.data_dir):
            return f"the data set {config.dataset} is not in the run's data directory"
        if config.site_places:
            return "each site read its own folder"
        if not is_at_hand(config.dataset, config.data_dir, config.data.size):
            return f"the data set {config.dataset} is not in the run's data directory"
        recorded = record.provenance.get("data", {}).get("sha256")
        found = []
        for shares in dict.fromkeys((len(record.sites), config.federation.sites)):
            division = Division(config.with_sites(shares))
            if division.dataset.checksum != recorded:
                return "the data set in the run's data directory has changed"
            found.append(_matched(record, division, shares))
        best = max(found, key=lambda each: len(each.parts))
    except NectarError as error:
        return f"they could not be read ({error})"
    return best if best.parts else "this release divides the data differently than the run did"


def _matched(record: RunRecord, division: Division, shares: int) -> RealImages:
    """Assign each site its partition of ``shares``, if that has the class counts of the record."""
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
    """Return each site's smallest distance of an image sent last to its real ones; empty if either is missing."""
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
