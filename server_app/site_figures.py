"""The sites' own figures in a line and in the log: of each site, of all together, and over the sites."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, pstdev
from typing import Any

import torch

from common.learning.measures import macro
from common.settings.sections import MEASURES
from strategies.exchange.replies import Outcome


def at_sites(
    mean: Mapping[str, Any] | None, outcome: Outcome, classes: int = 0, measure: str = "accuracy"
) -> dict[str, Any]:
    """Return what a line says of the evaluation at the sites; ``mean`` is over all examples.

    F1 and balanced accuracy are of all counts together, and the AUC is the mean of the sites' own, since no score
    leaves a site. Mean, deviation and worst are of the measure, each site counting once.
    """
    each: dict[str, dict[str, Any]] = {}
    total = torch.zeros(classes**2, dtype=torch.int64)
    for site, one in outcome.evaluated.items():
        each[site] = {"examples": one.examples, "accuracy": one.accuracy, "loss": one.loss}
        if one.counts:
            counts = torch.zeros_like(total)
            counts[list(one.counts[::2])] = torch.tensor(one.counts[1::2])
            total += counts
            each[site] |= _of_counts(counts.reshape(classes, classes))
        each[site] |= {} if one.auc is None else {"auc": one.auc}
    found = {"sites": None, "evaluated": each, "unevaluated": dict(outcome.unevaluated)}
    if not mean:
        return found
    table, own = total.reshape(classes, classes), measured(each, measure)
    more = {**_of_counts(table), "confusion": table.tolist()} if total.any() else {}
    if own:
        more |= {"mean": fmean(own.values()), "deviation": pstdev(own.values())}
        more |= {"worst": min(own.values())} | ({"auc": more["mean"]} if measure == "auc" else {})
    return {**found, "sites": {**mean, **more}}


def _of_counts(counts: torch.Tensor) -> dict[str, Any]:
    return dict(zip(("f1", "balanced"), macro(counts), strict=True))


def measured(evaluated: Mapping[str, Mapping[str, Any]], measure: str) -> dict[str, float]:
    """Return each site's measure; a site of a single class has no AUC."""
    return {site: one[measure] for site, one in evaluated.items() if measure in one}


def spread(line: Mapping[str, Any], measure: str) -> str:
    """Say what the measure is over the sites of a line, the worst one by name; nothing of one site."""
    own = measured(line["evaluated"], measure)
    if len(own) < 2:
        return ""
    of = "" if len(own) == len(line["evaluated"]) else f" of the {len(own)} that have two classes"
    return (
        "; {} by site{}: mean {mean:.4f}, deviation {deviation:.4f}, worst {worst:.4f} ({})".format(
            MEASURES[measure], of, min(own, key=own.__getitem__), **line["sites"]
        )
    )


def in_words(figures: Mapping[str, Any], measure: str, over: str = "") -> str:
    """Return what was measured, ``over`` which classes or sites, with accuracy and loss."""
    names = dict.fromkeys((measure, "accuracy", "loss"))
    first, *rest = (f"{MEASURES.get(n, n)} {figures.get(n, math.nan):.4f}" for n in names)
    return ", ".join([first + over, *rest])
