"""FedGEN on the device (Zhu, Hong and Zhou, 2021): local training, guided by latents that a generator draws."""

from __future__ import annotations

from itertools import count

import torch
from torch import Tensor, nn

from client_app.device import DeviceClient, phase
from client_app.local_training import dp_sgd_steps, trained_weights
from common.learning.task import Task
from common.learning.training import Local
from common.models import Classifier
from common.settings.fedgen import FedGENSettings
from common.specs.fedgen import CLASSES, GENERATOR, WEIGHTS, new_generator, sent_spec
from common.wire.bundle import Bundle
from common.wire.tensors import CLASS_LIST, Tensors
from common.wire.weights import Weights
from synth.feature_generator import FeatureGenerator, device_loss, device_weight, latents_of
from synth.row_draws import RowDraws, integers


class FedGENClient(DeviceClient):
    """Trains as FedAvg's device does, with two terms on latents in the first epochs of a round that has a generator."""

    @phase("train", takes=sent_spec)
    def train(self, given: Bundle) -> Weights:
        """Return w_k, trained on the site's images from the weights that were sent."""
        w, settings = given.part(WEIGHTS, Weights), self.settings(FedGENSettings)
        guided = GENERATOR in given.parts and settings.strength > 0
        return trained_weights(self, w, self._guided(given) if guided else Local())[0]

    def _guided(self, given: Bundle) -> Local:
        settings, feature_generator = self.settings(FedGENSettings), new_generator(self.run)
        given.part(GENERATOR, Weights).load_into(feature_generator)
        classes = given.part(CLASSES, Tensors)[CLASS_LIST].to(self.run.device)
        # The released code counts rounds from 0.
        weight = device_weight(
            self.server_round - 1, settings.strength, decay=settings.strength_decay
        )
        draws = self.generator("fedgen")
        return guided(
            self.run.task,
            feature_generator,
            classes,
            draws,
            weight=weight,
            drawn=settings.drawn,
            steps=settings.epochs_with_latents * self._steps_an_epoch,
        )

    @property
    def _steps_an_epoch(self) -> int:
        """Return the steps of an epoch: in a private run as public as these are."""
        settings, examples = (
            self.settings(FedGENSettings),
            min(self.examples_an_epoch, len(self.samples)),
        )
        if self.run.config.privacy.active:
            return -(-dp_sgd_steps(self, len(self.samples)).steps // max(1, settings.epochs))
        return -(-examples // settings.batch)


def guided(
    task: Task,
    feature_generator: FeatureGenerator,
    classes: Tensor,
    draws: torch.Generator,
    *,
    weight: float,
    drawn: int,
    steps: int,
) -> Local:
    """Return local training by the task's loss with `device_loss` beside it in the first ``steps`` steps, later alone.

    Parameters
    ----------
    feature_generator : FeatureGenerator
        G; no gradient reaches it.
    classes : Tensor
        Those that y' is uniform over, int64 [k].
    draws : torch.Generator
        The source of y' and of G's noise, on the model's device, where the examples have no draws of their own.
    weight : float
        a_r = b_r.
    drawn : int
        B_g, the latents of any class; 0: one for each image.
    steps : int
        The steps that have latents.
    """
    taken = count()

    def draw(model: nn.Module, targets: Tensor, rows: RowDraws | None) -> tuple[Tensor, ...]:
        if next(taken) >= steps or not len(targets):
            return ()
        if rows is None:
            size = (drawn or len(targets),)
            at = torch.randint(len(classes), size, generator=draws, device=draws.device)
        else:
            at = integers(rows, len(classes))

        def latents(labels: Tensor) -> Tensor:
            if rows is None:
                eps = feature_generator.draw_noise(len(labels), draws)
            else:
                eps = rows.uniform(feature_generator.noise).float()
            return latents_of(feature_generator, labels, eps)

        return latents(targets), latents(classes[at]), classes[at]

    def objective(
        model: nn.Module, x: Tensor, targets: Tensor, positions: Tensor, *latents: Tensor
    ) -> Tensor:
        assert isinstance(model, Classifier)
        logits = model(x)
        own = task.loss(logits, targets)
        if not latents:
            return own
        alike, any_class, labels = latents
        with torch.no_grad():
            matched = model.classify(alike)
        return own + device_loss(
            logits,
            matched,
            model.classify(any_class),
            labels,
            alpha=weight,
            beta=weight,
            ratio=len(labels) / len(x),
        )

    return Local(objective=objective, draw=draw)
