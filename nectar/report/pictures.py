"""The images that sites sent, or the server made of what they sent, a strip a class above the nearest real ones."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from PIL import Image
from torch import Tensor

from common.errors import NectarError
from common.samples.dataset import DatasetInfo
from common.sites import ALL_SITES, site_slug
from common.wire.display_contrast import Contrast
from common.wire.synthetic_images import SyntheticImages
from nectar.report.html import Markup, h, join, scroll
from nectar.report.neighbours import Likest, Nearest, RealImages, real_images
from nectar.report.rows import of_rows
from nectar.report.text import plural
from nectar.report.view import View
from server_app.recorder import hard, on_screen
from server_app.synthetic_sets import contrast_of

#: what is drawn of one run at most; the record has all
_MAX_SITES, _MAX_CLASSES, _MAX_IMAGES = 20, 20, 10
#: closer than this to a real image is the same image but for rounding
_SAME = 0.005
_OPEN = 2

Beside = Nearest | Likest
_WHICH: dict[type[Beside], str] = {
    Nearest: "the nearest real one and its distance",
    Likest: "the most similar real one and their correlation",
}
#: what is compared with the images that a site sent, by the site whose real images it is: its own, one it helped
Compared = dict[str, Beside]

#: what is said above the strips
_STRETCHED = (
    "Their values lie outside what a screen shows, or in a small part of it: each one is drawn from its own smallest "
    "value, black, to its own largest, white. How strong an image is cannot be seen."
)
_BELOW: dict[Contrast, str] = {
    "pixels": "Below each {done} image is the nearest one among {whose} own real images, and how far it is: the root "
    "of the mean squared difference of their pixel values, which run from 0 to 1. 0 is the same image. "
    "The site whose image lies closest to a real one stands first.",
    "stretched": "Below each {done} image is the most similar one among {whose} own real images, and how alike the two "
    "are: the correlation of their pixel values, which no change of contrast or brightness moves. 1 is the same "
    "image, -1 the same as a negative, 0 is nothing in common.",
}


@dataclass
class Budget:
    """How many more bytes of pictures the page may take."""

    left: int

    def picture(self, png: bytes, alt: str, width: int, height: int) -> Markup | None:
        """Return the picture as an ``<img>``, or None where it would be too much."""
        if len(png) > self.left:
            return None
        self.left -= len(png)
        data = base64.b64encode(png).decode("ascii")
        source = f"data:image/png;base64,{data}"
        return h("img", src=source, alt=alt, width=width, height=height)


def of_run(view: View, level: int, budget: Budget) -> Markup:
    """Show what the sites of one run sent, in the last round and in the first."""
    try:
        server_round, sets = view.past.synthetic()
        contrast = contrast_of(view.past.record.last_sets) if sets else "pixels"
    except NectarError as error:
        return h("p", f"The images cannot be shown: {error}.")
    if not sets:
        return h("p", _nothing(view))
    if view.info is None:
        return h("p", "The images cannot be shown: this release does not know the data set.")
    if not view.info.has_images:
        return of_rows(sets, view.info, server_round, view.past.record.id)
    real = real_images(view)
    helped = {helper: site for _, site, helper, _ in reversed(view.matches)}
    whose = "all sites'" if ALL_SITES in sets else "the site's"
    parts = [*_introduction(view, server_round, real, contrast, whose)]
    shown = sorted(sets, key=lambda site: _apart(view, site))[:_MAX_SITES]
    drawn = 0
    for site in shown:
        opened, others = drawn < _OPEN, [helped[site]] if site in helped else []
        block = _site(site, others, sets[site], view, real, contrast, budget, opened=opened)
        if block is None:
            break
        parts.append(block)
        drawn += 1
    if drawn < len(sets):
        parts.append(_note(drawn, len(sets)))
    return join([*parts, _first_round(view, list(sets), server_round, level, budget)])


def _apart(view: View, site: str) -> float:
    """Return how far a site's closest image lies from a real one; those of which nothing is known come last."""
    return view.closest[site].distance if site in view.closest else math.inf


def strip(images: Tensor) -> tuple[bytes, int, int]:
    """Return images [n, C, H, W], values 0 to 1, side by side as a PNG, with its width and height.

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
    return buffer.getvalue(), n * (width + gap), height


def _nothing(view: View) -> str:
    if not view.rounds:
        return "No round was finished, so no images were sent."
    if view.facts is not None and view.facts.carries:
        return f"{view.spoken} sends {view.facts.carries}, no images: there is nothing to show."
    if view.info is not None and not view.info.has_values:
        return (
            "The data are text: what was sent in its place is not a picture, and nothing was drawn."
        )
    return "The record holds no images."


def _done(view: View) -> str:
    """Say what was done with the images: where something else travelled, the server made them of that."""
    return "made" if view.facts is not None and view.facts.carries else "sent"


def _heading(view: View, server_round: int) -> str:
    told = {"sent": "What the sites sent in", "made": "What the server made in"}
    return f"{told[_done(view)]} round {server_round}"


def _introduction(
    view: View, server_round: int, real: RealImages | str, contrast: Contrast, whose: str
) -> list[Markup]:
    what = view.facts.pictures if view.facts is not None else "images"
    said = [h("p", f"{_heading(view, server_round)}: {what}, a strip a class.")]
    if contrast == "stretched":
        said.append(h("p", _STRETCHED))
    if isinstance(real, str):
        name = "nearest" if contrast == "pixels" else "most similar"
        said.append(h("p", f"The {name} real images are not shown: {real}."))
    else:
        said += [
            h("p", _BELOW[contrast].format(done=_done(view), whose=whose)),
            h(
                "p",
                h("strong", "This page shows real images of the data set."),
                " Do not hand it on where they are confidential.",
            ),
        ]
    return said


def _site(
    site: str,
    others: Sequence[str],
    sent: SyntheticImages,
    view: View,
    real: RealImages | str,
    contrast: Contrast,
    budget: Budget,
    *,
    opened: bool,
) -> Markup | None:
    """Draw one site's images beside its own real ones and those of ``others``; None where the budget is spent."""
    assert view.info is not None
    labels = hard(sent.labels)
    images = on_screen(sent.images, view.info, contrast)
    present = torch.unique(labels).tolist()
    chosen = [(labels == c).nonzero().flatten()[:_MAX_IMAGES] for c in present[:_MAX_CLASSES]]
    every = torch.cat(chosen)
    compared = _compared(real, [site, *others], images[every], contrast)
    rows, start = [], 0
    for c, members in zip(present, chosen, strict=False):
        part = slice(start, start + len(members))
        start += len(members)
        of = f"{site}, class {_class(view.info, c)}"
        cell = _strips(site, of, _done(view), images[members], compared, part, budget)
        if cell is None:
            return None
        rows.append(h("tr", h("th", _class(view.info, c), scope="row"), h("td", *cell)))
    head = h("tr", h("th", "class", scope="col"), h("th", "images", scope="col"))
    said = _counted(len(labels), len(present), len(every), len(rows))
    caption = h("caption", f"{site}: {said}{_order(site, compared, _done(view))}")
    table = h("table", caption, h("thead", head), h("tbody", *rows), class_="pictures")
    return h(
        "details",
        h("summary", f"{site}: {plural(len(labels), 'image')}"),
        _judgement(site, compared.get(site)),
        scroll(table, f"images of {site}"),
        open=opened,
    )


def _compared(
    real: RealImages | str, sites: Sequence[str], images: Tensor, contrast: Contrast
) -> Compared:
    """Return the nearest or likest real images of each of ``sites`` of which there are any."""
    if isinstance(real, str):
        return {}
    ask = real.nearest if contrast == "pixels" else real.likest
    found = {site: ask(site, images) for site in sites}
    return {site: beside for site, beside in found.items() if beside is not None}


def _order(site: str, compared: Compared, done: str) -> str:
    """Say what the strips are, from the top."""
    if not compared:
        return ""
    which = _WHICH[type(next(iter(compared.values())))]
    whose = [
        which if owner == site else f"{which} at {owner}, which it helped" for owner in compared
    ]
    return f"; above: {done}, below: {'; '.join(whose)}"


def _counted(images: int, classes: int, shown: int, rows: int) -> str:
    whole = f"{plural(images, 'image')} of {plural(classes, 'class', 'classes')}"
    if shown == images:
        return whole
    part = f"{plural(shown, 'image')} of {plural(rows, 'class', 'classes')}"
    return f"{whole}; here {part}"


def _class(info: DatasetInfo, c: int) -> str:
    return info.classes[c] if c < len(info.classes) else str(c)


def _strips(
    site: str,
    of: str,
    done: str,
    images: Tensor,
    compared: Compared,
    part: slice,
    budget: Budget,
) -> list[Markup] | None:
    n = len(images)
    sent = budget.picture(*_drawn(images, f"{of}: {plural(n, 'image')} {done}"))
    if sent is None:
        return None
    cells = [h("div", sent, class_="strip", style=f"--n:{n}")]
    for owner, beside in compared.items():
        which = "nearest" if isinstance(beside, Nearest) else "most similar"
        whose = "" if owner == site else f" at {owner}"
        alt = f"{of}: the {which} real image of each{whose}"
        found = budget.picture(*_drawn(beside.images[part], alt))
        if found is None:
            return None
        cells.append(h("div", found, class_="strip", style=f"--n:{n}"))
        spans = _spans(beside.captions[part])
        cells.append(h("div", *spans, class_="apart", style=f"--n:{n}"))
    return cells


def _drawn(images: Tensor, alt: str) -> tuple[bytes, str, int, int]:
    png, width, height = strip(images)
    return png, alt, width, height


def _spans(texts: Sequence[str]) -> list[Markup]:
    """Return the texts in a span each, with a space between, so that they are read apart."""
    return [h("span", text + " ") for text in texts]


def _judgement(site: str, beside: Beside | None) -> Markup | None:
    if beside is None:
        return None
    whose = "all sites" if site == ALL_SITES else "the site"
    return h("p", _of_nearest(beside, whose) if isinstance(beside, Nearest) else _of_likest(beside))


def _of_nearest(nearest: Nearest, whose: str) -> str:
    ordered = sorted(nearest.distances)
    same = sum(value < _SAME for value in ordered)
    said = f"Distances: smallest {ordered[0]:.3f}, median {ordered[len(ordered) // 2]:.3f}. "
    if nearest.usual is not None:
        said += (
            f"A real image of {whose} is {nearest.usual:.3f} (median) from its nearest other one. "
        )
    if same:
        said += f"{same} of {plural(len(ordered), 'image')} shown are real images of {whose}, but for rounding."
    else:
        said += "None of those shown equals a real image; whether one resembles it too closely is for you to judge."
    return said


def _of_likest(likest: Likest) -> str:
    """Say how alike the images are to the site's own, to another site's, and the site's own to each other."""
    own = [abs(value) for value in likest.correlations]
    said = (
        f"Correlation with the most similar of this site's {plural(likest.held, 'image')}, whatever its sign: "
        f"median {median(own):.2f}, largest {max(own):.2f}. "
    )
    if likest.usual is not None:
        said += f"A real image of this site has {likest.usual:.2f} (median) with its most similar other one. "
    if likest.control is None:
        return said + (
            "No other site's images are at hand to compare with, so a high correlation cannot be told from the look "
            "of a class."
        )
    other = [abs(value) for value in likest.control.correlations]
    here, there = max(zip(own, other, strict=True), key=lambda pair: pair[0] - pair[1])
    return said + (
        f"With the most similar of the {plural(likest.control.held, 'image')} of {likest.control.site}, whose classes "
        f"are most like this site's: median {median(other):.2f}, largest {max(other):.2f}; the image that is most this "
        f"site's own has {here:.2f} here and {there:.2f} there. That other site had no part in these images: a high "
        "correlation that its images reach too shows the class, not a person's sample, while one far above what they "
        "reach is a private example shown (or of a class that the other site lacks). Low ones prove no privacy: many "
        "real images may be mixed in one."
    )


def _first_round(
    view: View, sites: Sequence[str], last: int, level: int, budget: Budget
) -> Markup | None:
    """Offer the pictures that the record kept of the first round, where it was not the last as well."""
    folder = view.past.directory / "samples" / "round-001"
    if last <= 1 or not folder.is_dir():
        return None
    there = {site: path for site in sites if (path := folder / f"{site_slug(site)}.png").is_file()}
    blocks = []
    for site in list(there)[:_MAX_SITES]:
        alt = f"{site}: images {_done(view)} in round 1, a row a class"
        picture = _kept(there[site], alt, budget)
        if picture is None:
            break
        label = f"round 1, images of {site}"
        blocks += [h(f"h{level + 1}", f"{site}, round 1"), scroll(picture, label)]
    if not blocks:
        return None
    note = _note(len(blocks) // 2, len(there)) if len(blocks) // 2 < len(there) else None
    return h("details", h("summary", _heading(view, 1)), *blocks, note)


def _kept(path: Path, alt: str, budget: Budget) -> Markup | None:
    try:
        with Image.open(path, formats=["PNG"]) as picture:
            picture.verify()
            width, height = picture.size
        return budget.picture(path.read_bytes(), alt, width, height)
    except (OSError, SyntaxError, ValueError):  # what Pillow raises for a damaged file
        return None


def _note(drawn: int, of: int) -> Markup:
    return h(
        "p",
        f"Pictures of {drawn} of {plural(of, 'site')} are shown, to keep this page small. The record has all of them "
        "in samples/ and synthetic/.",
        class_="note",
    )
