"""What an accuracy is worth: how many labelled images at the server reach it alone, as ``method=server`` has measured.

``worth.csv`` has the curve of each data set and model, a line for each number of images and seed.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import fmean

from common.settings.sections import ModelSettings

FILE = Path(__file__).with_name("worth.csv")

Curve = Mapping[int, float]
"""Mean accuracy by the number of labelled images, ascending."""


def network(model: ModelSettings) -> str:
    """Return what a curve calls a model."""
    return f"{model.name} {model.depth}x{model.width}"


@cache
def curve_of(dataset: str, model: str) -> Curve:
    """Return the measured curve of a data set and model; empty where there is none."""
    found: dict[int, list[float]] = {}
    with FILE.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            if (line["dataset"], line["model"]) == (dataset, model):
                found.setdefault(int(line["images"]), []).append(float(line["accuracy"]))
    return {images: fmean(found[images]) for images in sorted(found)}


def worth(accuracy: float, curve: Curve) -> str:
    """Return the number of labelled images at which the curve reaches an accuracy, to two digits; empty without one.

    Between two points the accuracy goes with the logarithm of the number.
    """
    points = list(curve.items())
    if not points or math.isnan(accuracy):
        return ""
    before, low = points[0]
    if accuracy < low:
        return f"< {before:,}"
    for images, reached in points:
        if accuracy <= reached:
            way = (accuracy - low) / (reached - low) if reached > low else 1.0
            exact = math.exp(math.log(before) + way * math.log(images / before))
            return f"{round(exact, 1 - math.floor(math.log10(exact))):,.0f}"
        before, low = images, max(low, reached)
    return f"> {before:,}"
