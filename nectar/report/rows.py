"""The rows of a table and the series that sites sent, or the server made of what they sent: as tables and curves."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from common.data.own.rows import column_names, raw_values
from common.samples.dataset import DatasetInfo
from common.wire.synthetic_images import SyntheticImages
from nectar.charts import inline_svg, small_multiples
from nectar.report.html import Markup, h, join, table
from nectar.report.text import plural
from server_app.recorder import hard

#: what is shown at most; the record has all
_MAX_SITES, _MAX_DRAWN, _MAX_EACH, _MAX_COLUMNS = 20, 5, 5, 12
_OPEN = 2


def of_rows(
    sets: Mapping[str, SyntheticImages], info: DatasetInfo, server_round: int, run: str
) -> Markup:
    """Show what each site of ``run`` sent in a round: raw values in a table, or curves by class."""
    most = _MAX_SITES if info.kind == "table" else _MAX_DRAWN
    shown = list(sets)[:most]
    said = (
        f"What stands for the sites' {info.unit} in round {server_round}, up to {_MAX_EACH} of a class, as it was sent "
        "or made of that, in the data's own units. The record has all of it in samples/ and synthetic/."
    )
    blocks = [
        h(
            "details",
            h("summary", f"{site}: {plural(len(sets[site].labels), 'example')}"),
            _site(site, sets[site], info, run),
            open=place < _OPEN,
        )
        for place, site in enumerate(shown)
    ]
    more = len(sets) - len(shown)
    left = h("p", f"{plural(more, 'more site')} not shown here.") if more else None
    return join([h("p", said), *blocks, left])


def _site(site: str, sent: SyntheticImages, info: DatasetInfo, run: str) -> Markup:
    labels = hard(sent.labels)
    chosen = torch.cat(
        [(labels == c).nonzero().flatten()[:_MAX_EACH] for c in torch.unique(labels)]
    )
    classes = [
        info.classes[c] if c < len(info.classes) else str(c) for c in labels[chosen].tolist()
    ]
    values = raw_values(sent.images[chosen], info)
    if info.kind == "series":
        drawn = small_multiples(values[:, :, 0], classes, column_names(info))
        label = f"{run}, {site}: curves by class and channel"
        return h("div", Markup(inline_svg(drawn, label=label)), class_="chart")
    names = column_names(info)
    rows = [
        [name, *(f"{value:.4g}" for value in row[:_MAX_COLUMNS])]
        for name, row in zip(classes, values.reshape(len(values), -1), strict=True)
    ]
    more = len(names) - _MAX_COLUMNS
    beside = f"; {more} more columns are not shown" if more > 0 else ""
    return table(f"rows of {site}{beside}", ["class", *names[:_MAX_COLUMNS]], rows)
