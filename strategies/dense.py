"""DENSE on the server (Zhang et al., 2022): the sites' models, as an ensemble, distilled into one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch

from common.draws.seeding import generator, process_wide
from common.errors import ConfigError, DivergedError
from common.learning.run import Run
from common.models import Classifier
from common.samples.inputs import from_unit
from common.settings.dense import DENSESettings
from common.sites import ALL_SITES
from common.wire.images import SyntheticImages
from common.wire.weights import Weights
from strategies.exchange.replies import Upload
from strategies.fedavg import FedAvg
from synth.ensemble_distillation import Distillation, Ensemble, Losses, Plan, start

_SHOWN = 10
"""Images of a class that a round leaves to be looked at."""


class DENSE(FedAvg):
    """FedAvg, and at the end of the last round, or of each, the average distilled to answer as all models together.

    A round that distils holds the models of all its sites at once, and takes the passes of all of them for each
    gradient of an image. Nothing is kept from one distillation to the next.

    A run of one round is the paper's. One resumed for more rounds continues from the student that its last round
    left.
    """

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        self.settings = settings = run.settings(DENSESettings)
        if run.config.model.stays_in_part:
            raise ConfigError(
                f"{run.config.model.what_stays} leaves a part of the model at the sites, and "
                f"method={run.config.method} needs the sites' complete models at the server: leave it out"
            )
        patience = run.config.evaluation.patience
        last = settings.distil == "last" and settings.server_iterations
        if 0 < patience < run.config.rounds and last:
            raise ConfigError(
                f"evaluation.patience={patience} may end the run before its last round, which alone distils under "
                "dense.distil=last: leave it out, or set dense.distil=every"
            )
        try:
            draws = generator(run.config.seed, "dense", device=run.device)
            self._generator = start(run.image_shape, draws, settings.noise, settings.width)
        except ValueError as error:
            raise ConfigError(
                f"method={run.config.method} does not fit the data: {error}"
            ) from None
        self._told: dict[str, float] = {}
        self._pictures: dict[str, SyntheticImages] = {}

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Average the weights as they come; in a round that distils, return what is then distilled of them."""
        self._told, self._pictures = {}, {}
        distils = self.settings.distil == "every" or server_round == self.run.config.rounds
        self._models: list[Classifier] | None = [] if distils else None
        average = super().update(server_round, weights, uploads)
        models, self._models = self._models, None
        if models is None:
            return average
        initial = average if self.settings.student_start == "average" else weights
        return self._distilled(server_round, initial, Ensemble(models))

    def take(self, upload: Upload) -> None:
        """Keep the site's model in a round that distils."""
        if self._models is not None:
            self._models.append(self.run.model_with(self.model_of(upload)))

    def _distilled(self, server_round: int, initial: Weights, ensemble: Ensemble) -> Weights:
        """Return a student's weights, trained from ``initial``; DivergedError if a loss leaves the finite numbers."""
        student, seed = self.run.model_with(initial), self.run.config.seed
        distillation = Distillation(
            student,
            ensemble,
            self._generator,
            len(self.run.info.classes),
            partial(from_unit, self.run.info),
            lambda i: generator(seed, "dense", server_round, i, device=self.run.device),
            plan=_plan(self.settings),
        )
        # Of the student's layers that draw by themselves, such as dropout.
        with process_wide(seed, "dense", server_round):
            losses = self._iterated(server_round, distillation)
        if losses is not None:
            self._told = {"generator-loss": losses.generator, "student-loss": losses.student}
            self._pictures = {ALL_SITES: self._newest(distillation)}
        return Weights.of(student, initial.codec)

    def _iterated(self, server_round: int, distillation: Distillation) -> Losses | None:
        """Run all iterations and return the losses of the last one."""
        losses = None
        try:
            for _ in range(self.settings.server_iterations):
                losses = distillation.run_iteration()
        except FloatingPointError as error:
            raise DivergedError(
                f"round {server_round} is not kept: {error} (dense.generator_lr, dense.student_lr)"
            ) from None
        return losses

    def _newest(self, distillation: Distillation) -> SyntheticImages:
        """Return the images of each class that came last into the pool, as a model takes them."""
        labels = torch.cat(distillation.labels).flip(0)
        member = labels[:, None] == torch.unique(labels)
        few = (member & (member.cumsum(0) <= _SHOWN)).any(1)
        images = torch.cat(distillation.pool).flip(0)[few].float() / 255
        return SyntheticImages(from_unit(self.run.info, images).cpu(), labels[few].cpu())

    def pictures(self) -> Mapping[str, SyntheticImages]:
        """Return the newest images of each class that the student learned from, where the round distilled."""
        return self._pictures

    def notes(self) -> Mapping[str, Any]:
        """Return the losses of the last iteration, where the round distilled."""
        return self._told


def _plan(settings: DENSESettings) -> Plan:
    return Plan(
        steps=settings.generator_steps,
        lr=settings.generator_lr,
        batch=settings.generator_batch,
        matching=settings.matching,
        statistics=settings.statistics,
        adversarial=settings.adversarial,
        padding=settings.padding,
        flip=settings.flip,
        student_batch=settings.student_batch,
        student_lr=settings.student_lr,
        momentum=settings.student_momentum,
        temperature=settings.temperature,
    )
