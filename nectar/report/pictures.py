"""What sites sent, or the server made of what they sent: images above the nearest real ones, rows and series."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from common.data.user.rows import column_names, raw_values
from common.errors import NectarError
from common.samples.dataset import DatasetInfo
from common.sites import ALL_SITES, site_slug
from common.wire.image_codecs import Contrast
from common.wire.images import SyntheticImages
from nectar.charts import inline_svg, small_multiples
from nectar.records.real_images import Nearest, RealImages, real_images
from nectar.records.synthetic_sets import contrast_of
from nectar.report.view import View
from nectar.text import Table, plural
from server_app.pictures import hard, on_screen

#: what is drawn of one run at most; the record has all
_MAX_SITES, _MAX_CLASSES, _MAX_IMAGES = 20, 20, 10
#: the same of tables and series: sites with series, examples of a class, columns
_MAX_DRAWN, _MAX_EACH, _MAX_COLUMNS = 5, 5, 12
#: how real images are chosen, and what the figure below them is, by how images are compared
_WHICH = {"pixels": "nearest", "stretched": "most similar"}
_FIGURE = {
    "pixels": "far it is: the root of the mean squared difference of their pixel values, which run from 0 to 1. 0 is "
    "the same image. The site whose image is closest to a real one comes first.",
    "stretched": "alike the two are: the correlation of their pixel values, which no change of contrast or brightness "
    "moves. 1 is the same image, -1 the same as a negative, 0 is nothing in common.",
}
#: an image closer than this to a real one equals it up to rounding
_SAME = 0.005


class Picture(NamedTuple):
    """A PNG file as an ``<img>`` has it, of ``n`` images side by side."""

    src: str
    alt: str
    width: int
    height: int
    n: int = 1


class Strip(NamedTuple):
    """Images side by side: what they are, and the captions below them."""

    label: str
    picture: Picture
    captions: Sequence[str] = ()


@dataclass
class SiteImages:
    """What one site sent: a row a class of strips of images, each with the captions below it; or a table; a curve."""

    site: str
    count: str
    judgement: str = ""
    caption: str = ""
    rows: list[tuple[str, list[Strip]]] = field(default_factory=list)
    table: Table | None = None
    chart: str = ""

    @property
    def size(self) -> int:
        """The characters of its pictures."""
        return sum(len(one.picture.src) for _, strips in self.rows for one in strips)


@dataclass
class Images:
    """What is shown of a run: a sentence if there is nothing; else the sites' images of the last and first round.

    Parameters
    ----------
    real : bool
        Whether real images are among them.
    more : int
        Sites whose images are left out, of ``of``.
    first : list of (str, Picture)
        Each site's images of the first round; ``first_of`` sites have some.
    """

    nothing: str = ""
    introduction: list[str] = field(default_factory=list)
    real: bool = False
    sites: list[SiteImages] = field(default_factory=list)
    more: int = 0
    of: int = 0
    first: list[tuple[str, Picture]] = field(default_factory=list)
    first_of: int = 0


def of_run(view: View, most: int) -> Images:
    """Return what the sites of one run sent, in the last round and in the first: ``most`` characters of pictures."""
    try:
        server_round, sets = view.record.synthetic()
        contrast = contrast_of(view.record.last_sets) if sets else "pixels"
    except NectarError as error:
        return Images(f"The images cannot be shown: {error}.")
    if not sets:
        return Images(_nothing(view))
    if view.info is None:
        return Images("The images cannot be shown: this release does not know the data set.")
    if not view.info.has_images:
        return _of_rows(sets, view.info, server_round, view.record.id)
    real = real_images(view.record)
    whose = "all sites'" if ALL_SITES in sets else "the site's"
    introduction = _introduction(view, server_round, real, contrast, whose)
    found = Images("", introduction, of=len(sets))
    found.real = isinstance(real, RealImages)
    helped = {helper: site for _, site, helper, _ in reversed(view.matches)}
    distances = {site: closest.distance for site, closest in view.closest.items()}
    for site in sorted(sets, key=lambda one: distances.get(one, math.inf))[:_MAX_SITES]:
        others = [helped[site]] if site in helped else []
        drawn = _site(site, others, sets[site], view, view.info, real, contrast)
        most -= drawn.size
        if most < 0:
            break
        found.sites.append(drawn)
    found.more = len(sets) - len(found.sites)
    if server_round > 1:
        _first_round(found, view, list(sets), most)
    return found


def _nothing(view: View) -> str:
    if not view.rounds:
        return "No round was finished, so no images were sent."
    if view.facts is not None and view.facts.carries:
        return (
            f"{view.display_name} sends {view.facts.carries}, no images: there is nothing to show."
        )
    if view.info is not None and not view.info.has_values:
        return (
            "The data are text: what was sent in its place is not a picture, and nothing was drawn."
        )
    return "The record holds no images."


def heading(view: View, server_round: int) -> str:
    """Return the heading of a round's images."""
    verbs = {"sent": "What the sites sent in", "made": "What the server made in"}
    return f"{verbs[view.done]} round {server_round}"


def _introduction(
    view: View, server_round: int, real: RealImages | str, contrast: Contrast, whose: str
) -> list[str]:
    what = view.facts.pictures if view.facts is not None else "images"
    message = [f"{heading(view, server_round)}: {what}, one strip per class."]
    if contrast == "stretched":
        message.append(
            "Their values are outside what a screen shows, or in a small part of it: each one is drawn from its own "
            "smallest value, black, to its own largest, white. How strong an image is cannot be seen."
        )
    if isinstance(real, str):
        message.append(f"The {_WHICH[contrast]} real images are not shown: {real}.")
    else:
        message.append(
            f"Below each {view.done} image is the {_WHICH[contrast]} one among {whose} own real images, and how "
            + _FIGURE[contrast]
        )
    return message


def _site(
    site: str,
    others: Sequence[str],
    sent: SyntheticImages,
    view: View,
    info: DatasetInfo,
    real: RealImages | str,
    contrast: Contrast,
) -> SiteImages:
    """Draw one site's images above its own real ones and those of ``others``."""
    labels = hard(sent.labels)
    images = on_screen(sent.images, info, contrast)
    present = torch.unique(labels).tolist()
    chosen = [(labels == c).nonzero().flatten()[:_MAX_IMAGES] for c in present[:_MAX_CLASSES]]
    every = torch.cat(chosen)
    compared: dict[str, Nearest] = {}
    if isinstance(real, RealImages):
        found = {owner: real.nearest(owner, images[every], contrast) for owner in (site, *others)}
        compared = {owner: one for owner, one in found.items() if one is not None}
    rows, parts = [], torch.split(torch.arange(len(every)), [*map(len, chosen)])
    for c, members, part in zip(present, chosen, parts, strict=False):
        name = _class(info, c)
        of = f"{site}, class {name}"
        alt = f"{of}: {plural(len(members), 'image')} {view.done}"
        strips = [Strip(view.done, strip(images[members], alt))]
        for owner, one in compared.items():
            whose = "" if owner == site else f" at {owner}"
            label = _WHICH[contrast] + whose
            alt = f"{of}: the {_WHICH[contrast]} real image of each{whose}"
            digits = 3 if contrast == "pixels" else 2
            captions = [f"{one.figures[at]:.{digits}f}" for at in part.tolist()]
            strips.append(Strip(label, strip(one.images[part], alt), captions))
        rows.append((name, strips))
    message = f"{plural(len(labels), 'image')} of {plural(len(present), 'class', 'classes')}"
    if len(every) < len(labels):
        message += (
            f"; shown: {plural(len(every), 'image')} of {plural(len(rows), 'class', 'classes')}"
        )
    if compared:
        message += f"; below each row its {'distance' if contrast == 'pixels' else 'correlation'}"
    judge = _of_distances if contrast == "pixels" else _of_correlations
    judged = judge(site, compared[site]) if site in compared else ""
    return SiteImages(site, plural(len(labels), "image"), judged, f"{site}: {message}", rows)


def _class(info: DatasetInfo, c: int) -> str:
    return info.classes[c] if c < len(info.classes) else str(c)


def strip(images: Tensor, alt: str) -> Picture:
    """Return images [n, C, H, W], values 0 to 1, side by side.

    Behind each one is a gap that lets the page through, so that n columns of equal width fit below.
    """
    n, channels, height, width = images.shape
    gap = max(1, width // 12)
    colour = (images * 255).round().to(torch.uint8)
    if channels not in (1, 3):
        colour = colour.float().mean(1, keepdim=True).to(torch.uint8)
    sheet = torch.zeros(n, colour.shape[1] + 1, height, width + gap, dtype=torch.uint8)
    sheet[:, :-1, :, :width] = colour
    sheet[:, -1, :, :width] = 255
    rows = sheet.permute(2, 0, 3, 1).reshape(height, n * (width + gap), -1).contiguous()
    buffer = io.BytesIO()
    Image.fromarray(rows.numpy()).save(buffer, format="PNG")
    return _picture(buffer.getvalue(), alt, n * (width + gap), height, n)


def _picture(png: bytes, alt: str, width: int, height: int, n: int = 1) -> Picture:
    data = base64.b64encode(png).decode("ascii")
    return Picture(f"data:image/png;base64,{data}", alt, width, height, n)


def _of_distances(site: str, found: Nearest) -> str:
    """Return how near the images come to the site's own, and the site's own to each other."""
    whose = "all sites" if site == ALL_SITES else "the site"
    ordered = sorted(found.figures)
    same = sum(value < _SAME for value in ordered)
    message = f"Distances: smallest {ordered[0]:.3f}, median {median(ordered):.3f}. "
    if found.typical is not None:
        message += (
            f"A real image of {whose} is {found.typical:.3f} (median) from its nearest other one. "
        )
    if same:
        message += f"{same} of {plural(len(ordered), 'image')} shown are real images of {whose}, up to rounding."
    else:
        message += "None of those shown equals a real image; whether one resembles it too closely is for you to judge."
    return message


def _of_correlations(_: str, found: Nearest) -> str:
    """Return how alike the images are to the site's own, to another site's, and the site's own to each other."""
    own = [abs(value) for value in found.figures]
    message = (
        f"Correlation with the most similar of this site's {plural(found.held, 'image')}, of either sign: "
        f"median {median(own):.2f}, largest {max(own):.2f}. "
    )
    if found.typical is not None:
        message += f"A real image of this site has {found.typical:.2f} (median) with its most similar other one. "
    if found.control is None:
        return message + (
            "No other site's images are at hand to compare with, so a high correlation cannot be distinguished from "
            "the look of a class."
        )
    other = [abs(value) for value in found.control.figures]
    here, there = max(zip(own, other, strict=True), key=lambda pair: pair[0] - pair[1])
    return message + (
        f"With the most similar of the {plural(found.control.held, 'image')} of {found.control.site}, whose classes "
        f"are most like this site's: median {median(other):.2f}, largest {max(other):.2f}; the image that is most this "
        f"site's own has {here:.2f} here and {there:.2f} there. That other site had no part in these images: a high "
        "correlation that its images reach too shows the class, not a person's sample, while one far above what they "
        "reach is a private example shown (or of a class that the other site lacks). Low ones prove no privacy: many "
        "real images may be mixed in one."
    )


def _first_round(found: Images, view: View, sites: Sequence[str], most: int) -> None:
    """Add the pictures that the record kept of the first round."""
    folder = view.record.directory / "samples" / "round-001"
    there = {site: path for site in sites if (path := folder / f"{site_slug(site)}.png").is_file()}
    found.first_of = len(there)
    for site, path in list(there.items())[:_MAX_SITES]:
        alt = f"{site}: images {view.done} in round 1, a row a class"
        try:
            with Image.open(path, formats=["PNG"]) as opened:
                opened.verify()
            picture = _picture(path.read_bytes(), alt, *opened.size)
        except (OSError, SyntaxError, ValueError):  # what Pillow raises for a damaged file
            return
        most -= len(picture.src)
        if most < 0:
            return
        found.first.append((site, picture))


def _of_rows(
    sets: Mapping[str, SyntheticImages], info: DatasetInfo, server_round: int, run: str
) -> Images:
    """Return what each site of ``run`` sent in a round: raw values in a table, or curves by class."""
    message = (
        f"What was sent instead of the sites' {info.unit} in round {server_round}, up to {_MAX_EACH} of a class, "
        "unchanged or made of that, in the data's own units. The record has all of it in samples/ and synthetic/."
    )
    shown = list(sets)[: _MAX_SITES if info.kind == "table" else _MAX_DRAWN]
    sites = [_rows(site, sets[site], info, run) for site in shown]
    return Images("", [message], sites=sites, more=len(sets) - len(shown))


def _rows(site: str, sent: SyntheticImages, info: DatasetInfo, run: str) -> SiteImages:
    labels = hard(sent.labels)
    chosen = torch.cat(
        [(labels == c).nonzero().flatten()[:_MAX_EACH] for c in torch.unique(labels)]
    )
    classes = [_class(info, c) for c in labels[chosen].tolist()]
    values, names = raw_values(sent.images[chosen], info), column_names(info)
    found = SiteImages(site, plural(len(sent.labels), "example"))
    if info.kind == "series":
        drawn = small_multiples(values[:, :, 0], classes, names)
        label = f"{run}, {site}: curves by class and channel"
        found.chart = inline_svg(drawn, label=label)
        return found
    rows = [
        [name, *(f"{value:.4g}" for value in row[:_MAX_COLUMNS])]
        for name, row in zip(classes, values.reshape(len(values), -1), strict=True)
    ]
    more = len(names) - _MAX_COLUMNS
    hidden = f"; {more} more columns are not shown" if more > 0 else ""
    found.table = Table(f"rows of {site}{hidden}", ["class", *names[:_MAX_COLUMNS]], rows)
    return found
