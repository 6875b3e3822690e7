"""The server's own evaluation: on the validation share, which choices may look at, and on the test set."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean
from types import MappingProxyType

from flwr.app import ArrayRecord

from common.division import Division
from common.learning.task import Evaluation
from common.learning.training import evaluate
from common.models import Classifier
from common.samples.inputs import Samples, samples
from server_app.loop import Evaluator, Judgement

log = logging.getLogger("flwr")


def server_evaluator(division: Division) -> Evaluator:
    """Return what evaluates weights after a round; it loads its data at once, so that a lack shows early.

    Raises
    ------
    DataError
        If the server is to evaluate and the data set is not there.
    """
    run = division.run
    if run.config.evaluation.on not in ("server", "both"):
        return lambda learned, beside: Judgement()
    test = samples(division.dataset.test, run.info).to(run.device)
    settings = run.config
    judging = division.validation[: 0 if settings.settings.trains_on_validation else None]
    held = samples(division.dataset.train, run.info, judging).to(run.device)

    @cache
    def model_of(architecture: str) -> Classifier:
        return run.with_model(architecture).build_model()

    def on(part: Samples, name: str, arrays: ArrayRecord) -> Evaluation:
        model = model_of(name if name in run.architectures else "")
        model.load_state_dict(arrays.to_torch_state_dict(keep_input=True))
        return evaluate(
            model, part, run.task, settings.evaluation.batch, settings.compute.precision
        )

    def judge(
        learned: Mapping[str, ArrayRecord], beside: Mapping[str, ArrayRecord] = MappingProxyType({})
    ) -> Judgement:
        on_test = {name: on(test, name, arrays) for name, arrays in learned.items()}
        on_held = [on(held, *model) for model in learned.items()] if len(held) else []
        others = {name: on(test, name, arrays) for name, arrays in beside.items()}
        return Judgement(
            mean_of([*on_test.values()]),
            mean_of(on_held) if on_held else None,
            {**on_test, **others} if len(on_test) + len(others) > 1 else {},
        )

    for sentence in division.gaps:
        log.warning("%s", sentence)
    model_of("")  # so that one that cannot be built shows early
    return judge


def mean_of(figures: Sequence[Evaluation]) -> Evaluation:
    """Return the plain mean over models that were judged on the same set."""
    if len(figures) == 1:
        return figures[0]
    each = zip(*(one.per_class for one in figures), strict=True)
    return Evaluation(
        loss=fmean(one.loss for one in figures),
        accuracy=fmean(one.accuracy for one in figures),
        per_class=tuple(fmean(column) for column in each),
        examples=figures[0].examples,
    )
