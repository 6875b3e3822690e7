"""The real image nearest to each synthetic one, among the site's own: what a person needs to judge a leak."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.data import Dataset, DatasetInfo, class_counts, samples
from common.data.sources import SOURCES
from common.errors import NectarError
from common.run import Run
from server_app.report.view import View

#: real images compared at a time
_CHUNK = 4096
#: of a site's real images, as many are asked how far their own nearest other one is
_ASKED = 100


@dataclass(frozen=True)
class Nearest:
    """For n images: the nearest real ones [n, C, H, W], values 0 to 1, and how far they are.

    A distance is the root of the mean squared difference over all pixel values: 0 is the same image. ``usual`` is
    the median of that distance from a real image of the site to its nearest other one, None for a single image.
    """

    images: Tensor
    distances: list[float]
    usual: float | None


@dataclass(frozen=True)
class RealImages:
    """The images that each simulated site held."""

    dataset: Dataset
    parts: dict[str, NDArray[np.int64]]

    def nearest(self, site: str, images: Tensor) -> Nearest | None:
        """Return the nearest of ``site``'s images to each of ``images`` (values 0 to 1); None for a site unknown."""
        indices = self.parts.get(site)
        if indices is None or not len(indices) or not len(images):
            return None
        asked = np.linspace(0, len(indices) - 1, min(_ASKED, len(indices))).astype(np.int64)
        own = self._pixels(indices[asked])
        queries = torch.cat([images.flatten(1), own.flatten(1)])
        selves = torch.tensor([-1] * len(images) + asked.tolist())
        best, at = _search(queries, selves, self._chunks(indices))
        best /= queries.shape[1] ** 0.5
        among = [value for value in best[len(images) :].tolist() if value != float("inf")]
        found = self._pixels(indices[at[: len(images)].numpy()])
        usual = median(among) if among else None
        return Nearest(found, best[: len(images)].tolist(), usual)

    def _chunks(self, indices: NDArray[np.int64]) -> Iterator[tuple[int, Tensor]]:
        for start in range(0, len(indices), _CHUNK):
            yield start, self._pixels(indices[start : start + _CHUNK]).flatten(1)

    def _pixels(self, indices: NDArray[np.int64]) -> Tensor:
        raw = samples(self.dataset.train, self.dataset.info, indices).raw
        return raw.to(torch.float32) / self.dataset.info.scale


def _search(
    queries: Tensor, selves: Tensor, chunks: Iterator[tuple[int, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Return the Euclidean distance to the nearest row of all chunks but the query's own, and which row it is."""
    best = torch.full((len(queries),), float("inf"))
    at = torch.zeros(len(queries), dtype=torch.int64)
    for start, rows in chunks:
        # exact differences: by matrix products the distance of equal images would not be zero
        apart = torch.cdist(queries, rows, compute_mode="donot_use_mm_for_euclid_dist")
        here = (selves >= start) & (selves < start + len(rows))
        apart[here.nonzero().flatten(), selves[here] - start] = float("inf")
        value, index = apart.min(dim=1)
        nearer = value < best
        best, at = torch.where(nearer, value, best), torch.where(nearer, index + start, at)
    return best, at


def real_images(view: View) -> RealImages | str:
    """Return the simulated sites' images, or the reason why they are not at hand. Downloads nothing."""
    if not view.simulated:
        return "the sites' images never were on this side"
    if view.config is None:
        return "this release does not know the run's configuration"
    try:
        source = SOURCES.get(view.config.dataset)
        if source is not None and source.missing(view.config.data_dir):
            return f"the data set {view.config.dataset} is not in the run's data directory"
        names = list(view.sites)
        run = Run(view.config.with_clients(len(names)))
        recorded = view.past.provenance.get("data", {})
        if run.dataset.checksum != recorded.get("sha256"):
            return "the data set that lies in the run's data directory is another one today"
        return _matched(view, run, names)
    except NectarError as error:
        return f"they could not be read ({error})"


def _matched(view: View, run: Run, names: Sequence[str]) -> RealImages | str:
    """Give each site its part, if the parts are those of the record."""
    dataset = run.dataset
    parts = run.partition(len(names))
    counts = class_counts(dataset.train.labels, parts, len(run.info.classes)).tolist()
    by_site: dict[str, NDArray[np.int64]] = {}
    for name in names:
        numbered = re.fullmatch(r"partition-(\d+)", name)
        index = int(numbered[1]) if numbered else -1
        if 0 <= index < len(parts) and counts[index] == view.sites[name].get("classes"):
            by_site[name] = parts[index]
    if not by_site:
        return "this release divides the data otherwise than the run did"
    return RealImages(dataset, by_site)


def pixels(images: Tensor, info: DatasetInfo) -> Tensor:
    """Return images of the model's normalised space as a screen shows them: float32, 0 to 1."""
    mean, std = (torch.tensor(v, dtype=torch.float32)[:, None, None] for v in (info.mean, info.std))
    return (images.float() * std + mean).clamp(0, 1)
