"""The sites' own figures in a line and in the log: of each site, of all together, and over the sites."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, pstdev
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from common.learning.measures import macro
from common.settings.sections import MEASURES
from strategies.exchange.replies import Outcome


def at_sites(
    mean: Mapping[str, Any] | None,
    outcome: Outcome,
    classes: int = 0,
    measure: str = "accuracy",
    held: Mapping[str, NDArray[np.int64]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return what a line says of the evaluation at the sites; ``mean`` is over all examples.

    F1 and balanced accuracy are of all counts together, and the AUC is the mean of the sites' own, since no score
    leaves a site. Mean, deviation and worst are of the measure, each site counting once. ``held`` is what the sites
    are known to hold out, by class (`Division.held_out`); what they tell themselves goes before it.
    """
    each: dict[str, dict[str, Any]] = {}
    total = torch.zeros(classes**2, dtype=torch.int64)
    judged = {site: torch.from_numpy(held[site]) for site in outcome.evaluated if site in held}
    for site, one in outcome.evaluated.items():
        each[site] = {"examples": one.examples, "accuracy": one.accuracy, "loss": one.loss}
        if one.counts:
            counts = torch.zeros_like(total)
            counts[list(one.counts[::2])] = torch.tensor(one.counts[1::2])
            total += counts
            judged[site] = counts.reshape(classes, classes).sum(1)
            each[site] |= _of_counts(counts.reshape(classes, classes))
        each[site] |= {} if one.auc is None else {"auc": one.auc}
        each[site] |= over_classes(judged[site]) if site in judged else {}
    found = {"sites": None, "evaluated": each, "unevaluated": dict(outcome.unevaluated)}
    if not mean:
        return found
    table, own = total.reshape(classes, classes), measured(each, measure)
    more = {**_of_counts(table), "confusion": table.tolist()} if total.any() else {}
    if own:
        more |= {"mean": fmean(own.values()), "deviation": pstdev(own.values())}
        more |= {"worst": min(own.values())} | ({"auc": more["mean"]} if measure == "auc" else {})
    more |= over_classes(sum(judged.values(), 0)) if judged.keys() == each.keys() else {}
    return {**found, "sites": {**mean, **more}}


def over_classes(counts: Any) -> dict[str, str]:
    """Return ``over`` how many of the classes figures of ``counts`` examples by class are; nothing where over all."""
    there = int((counts > 0).sum())
    return {"over": f"{there} of {len(counts)} classes"} if there < len(counts) else {}


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
    over += f" over {figures['over']}" if figures.get("over") else ""
    names = dict.fromkeys((measure, "accuracy", "loss"))
    first, *rest = (f"{MEASURES.get(n, n)} {figures.get(n, math.nan):.4f}" for n in names)
    return ", ".join([first + over, *rest])
