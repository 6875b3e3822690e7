"""Measures of a classifier besides accuracy: macro F1, balanced accuracy, AUC, and examples class by class."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.errors import ConfigError
from common.learning.run import Run
from common.learning.task import Evaluation
from common.learning.training import evaluate
from common.samples.inputs import Samples

MOST_CLASSES = 100
"""Up to which examples are counted class by class, and scores are ranked."""


def require_classes(run: Run) -> None:
    """Refuse what the run's data have not the classes for: ConfigError."""
    asked, classes = run.config.evaluation.measure, len(run.info.classes)
    if asked != "accuracy" and not (run.task.by_class and classes <= MOST_CLASSES):
        has = f"has {classes}" if run.task.by_class else "is text"
        raise ConfigError(
            f"evaluation.measure={asked} is taken of up to {MOST_CLASSES} classes, and {run.info.name} {has}: leave "
            "it at accuracy"
        )
    if run.config.weighs_classes and not run.task.by_class:
        raise ConfigError(f"class_weights is of classes, and {run.info.name} is text: leave it out")


def measure(run: Run, model: nn.Module, samples: Samples) -> Evaluation:
    """Evaluate ``model`` on all of ``samples`` by every measure that applies to the run's data."""
    config, k = run.config, len(run.info.classes)
    kept: list[Tensor] | None = [] if run.task.by_class and k <= MOST_CLASSES else None
    batch, precision = config.evaluation.batch, config.compute.precision
    found = evaluate(model, samples, run.task, batch, precision, kept)
    if kept is None:
        return found
    outputs, labels = torch.cat(kept), samples.labels
    counts = torch.bincount(labels * k + outputs.argmax(1), minlength=k * k).reshape(k, k)
    f1, balanced = macro(counts)
    auc, rows = float(areas(outputs, labels).nanmean()), tuple(map(tuple, counts.tolist()))
    return replace(found, f1=f1, balanced=balanced, auc=auc, confusion=rows)


def macro(counts: Tensor) -> tuple[float, float]:
    """Return macro F1 and balanced accuracy of examples counted by true class and predicted one, int64 [k, k].

    F1 is the mean over the classes that occur or were predicted, balanced accuracy (macro recall) over those that
    occur, as scikit-learn has them.
    """
    hits, true, predicted = counts.diagonal().double(), counts.sum(1), counts.sum(0)
    return float((2 * hits / (true + predicted)).nanmean()), float((hits / true).nanmean())


def areas(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return each class's area under the ROC curve against all others, float64 [k]; NaN of one without both.

    It is the chance that an example of the class has a higher score than another, ties counting half (Mann and
    Whitney, 1947). The scores are softmax's, of two classes the difference of their outputs [n, k].
    """
    z, own = outputs.double(), F.one_hot(labels, outputs.shape[1]).T
    scores = (z - z.flip(1) if z.shape[1] == 2 else z.softmax(1)).T.contiguous()
    ordered = scores.sort(1).values
    lower = torch.searchsorted(ordered, scores) + torch.searchsorted(ordered, scores, right=True)
    positives = own.sum(1)
    twice = (lower * own).sum(1) - positives**2  # without those of the class against each other
    found = twice / (2 * positives * (len(labels) - positives)).double()
    return torch.where(scores.isnan().any(1), math.nan, found)
