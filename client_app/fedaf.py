"""FedAF on the device (Wang et al., CVPR 2024): images that know the others' logits, and two sorts of class means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from client_app.device import phase
from client_app.feddm import FedDMClient
from client_app.local_training import train_aside
from common.models import Classifier
from common.settings.fedavg import TrainingSettings
from common.settings.feddm import FedAFSettings, FedDMSettings
from common.specs.logits import IMAGES, LOGITS, OTHERS, SHARES, WEIGHTS, fedaf_sent_spec
from common.wire.bundle import Bundle
from common.wire.tensors import LABELS, VECTORS, Tensors, latent_means
from common.wire.weights import Weights
from synth.aggregation_free import directions, mean_rows, mixed_weights, softened, towards_others
from synth.distribution_matching import Extra, Matching, Shown
from synth.logit_distillation import LIMIT


class FedAFClient(FedDMClient):
    """Condenses as FedDM's device distils, at weights mixed with fresh ones, and says what it knows of its classes."""

    _others: Tensor | None = None

    @phase("condense", takes=fedaf_sent_spec)
    def condense(self, given: Bundle) -> Bundle:
        """Return S_k, V_k at the round's weights, and R_k of the model that the site trains from them."""
        w = given.part(WEIGHTS, Weights)
        if OTHERS in given.parts:
            self._others = self._rows_of(given.part(OTHERS, Tensors))
        images = self.synthesize(w)
        return Bundle(
            {
                IMAGES: images,
                LOGITS: self._means(self._outputs(self.model(w))),
                SHARES: self._shares(w),
            }
        )

    def _rows_of(self, means: Tensors) -> Tensor:
        """Return V, [classes, classes], with NaN in the row of a class that no site knows."""
        classes = len(self.run.info.classes)
        rows = torch.full((classes, classes), torch.nan, device=self.run.device)
        rows[means[LABELS].to(rows.device)] = means[VECTORS].to(rows.device)
        return rows

    def matching(self, settings: FedDMSettings) -> Matching:
        """Return FedDM's at mixed weights, of mean embeddings alone."""
        own = self.settings(FedAFSettings)
        draw = mixed_weights(own.gamma, self._fresh()) if own.gamma < 1 else _at_the_centre
        return replace(super().matching(settings), weights=draw, logits=False)

    def extra(self) -> Extra | None:
        """Return L_CDC, from when the others are known."""
        own, others = self.settings(FedAFSettings), self._others
        if others is None or not own.local_strength:
            return None

        def distance(shown: Shown) -> Tensor:
            along = directions(own.directions, len(others), shown.draws)
            gap = towards_others(shown.logits, shown.labels, others, along, shown.averages)
            return own.local_strength * gap

        return distance

    def _fresh(self) -> Callable[[], Tensor]:
        """Return what gives the parameters of the run's network as it begins, others each time, flat."""
        numbers = count()

        def fresh() -> Tensor:
            model = self.run.build_model("fresh", self.server_round, self.drawn_as, next(numbers))
            return parameters_to_vector(model.parameters()).detach()

        return fresh

    def _shares(self, w: Weights) -> Tensors:
        """Return the mean softened outputs on each class's images of a model trained on them from ``w``."""
        own = self.settings(FedAFSettings)
        model = self.model(w)
        if own.local_epochs:
            settings = TrainingSettings(
                epochs=own.local_epochs, lr=own.local_lr, batch=own.local_batch, momentum=0.9
            )
            train_aside(self, model, settings, "local-training")
        self.keep_own_part(model)
        return self._means(softened(self._outputs(model), own.temperature))

    @torch.no_grad()
    def _outputs(self, model: Classifier) -> Tensor:
        """Return the logits of all of the site's images, [n, classes]."""
        model.eval()
        places = torch.arange(len(self.samples), device=self.run.device)
        parts = torch.split(places, self.run.config.evaluation.batch)
        found = torch.cat([model(self.samples.inputs(part)).float() for part in parts])
        return found.clamp(-LIMIT, LIMIT)

    def _means(self, rows: Tensor) -> Tensors:
        classes, means = mean_rows(rows, self.samples.labels, rows.shape[1])
        return latent_means(means.cpu(), classes.cpu(), self.run.config.wire.latents)


def _at_the_centre(centre: Tensor, _: torch.Generator, out: Tensor) -> None:
    out.copy_(centre)
