"""FedDGM on the server (Jia et al., 2023, Algorithm 1): images distilled of the sites' surrogates, models of those."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from common.errors import PayloadError
from common.learning.run import Run
from common.learning.training import Local
from common.samples.inputs import Samples
from common.sites import Site
from common.specs.feddgm import settings_of, surrogate_of
from common.wire.synthetic_images import SyntheticImages
from common.wire.weights import Weights
from strategies.base import GLOBAL, LEARNED, Instruction, State, Strategy
from strategies.bounds import Bound, model
from strategies.exchange.replies import Upload
from strategies.exchange.serialising import arrays_from
from strategies.global_models import GlobalModels, initial
from strategies.surrogate_distillation import Ended, SurrogateDistillation


@dataclass
class _Union:
    """The images distilled in one round, of all sites."""

    images: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)

    def samples(self) -> Samples:
        """Return them as a training set."""
        return Samples.of(torch.cat(self.images), torch.cat(self.labels))


class FedDGM(Strategy):
    """Distils a set of images of every site's trajectory, and trains global models and surrogates on their union.

    The run's weights are the surrogate theta_g of the run's own model; the others, and the global models w_g, are
    kept here. Each goes on from its values of the last round, on the images of this round alone.
    """

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        self.settings = settings_of(run)
        self.needs_class_counts = self.settings.classes == "known"
        self._distillation = SurrogateDistillation(run)
        self._models = GlobalModels(run, self.settings)
        self._surrogates = {
            name: initial(run, name) for name in run.architectures if name not in self._models
        }
        self._pictures: dict[str, SyntheticImages] = {}

    # ---- a round --------------------------------------------------------------------------------------

    def instructions(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Send each site theta_g of its architecture, expect it trained."""
        return {site.name: self._train(*self.start_of(weights, site)) for site in sites}

    def _train(self, start: Weights, architecture: str) -> Instruction:
        return Instruction("train", start, self.run.with_model(architecture).spec)

    def start_of(self, weights: Weights, site: Site) -> tuple[Weights, str]:
        """Return theta_g of the site's depth, and the name of that architecture."""
        architecture = surrogate_of(self.run, site.name)
        return self._surrogate(weights, architecture), architecture

    def _surrogate(self, weights: Weights, architecture: str) -> Weights:
        if not architecture:
            return weights
        return Weights(self._surrogates[architecture].tensors, weights.codec)

    def bounds(self) -> Mapping[str, Bound]:
        """Believe a surrogate beside those of its depth."""
        return {
            "": model("the distillation of that site's images", "nothing but what is distilled")
        }

    def leads_to(self, weights: Weights, upload: Upload) -> Weights:
        """Return the site's surrogate."""
        return upload.payload_as(Weights)

    def prepare(self, server_round: int, weights: Weights, upload: Upload) -> Upload:
        """Refuse weights that are those the site was sent: no trajectory leads from there to there."""
        start, _ = self.start_of(weights, upload.site)
        sent, came = start.tensors, upload.payload_as(Weights).tensors
        if all(torch.equal(tensor, sent[name]) for name, tensor in came.items()):
            raise PayloadError(
                "the weights are those that were sent, and nothing can be distilled of a site that has not trained"
            )
        return upload

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Distil each site's images as its weights come, then train on the union of all."""
        union, self._pictures, self._distillation.notes = _Union(), {}, {}
        for group in self._groups(uploads):
            for upload, images, labels in self._distilled(server_round, weights, group):
                union.images.append(images)
                union.labels.append(labels)
                self._pictures[upload.site.name] = SyntheticImages(images.cpu(), labels.cpu())
        self.round.require_quorum()
        samples = union.samples()
        self._models.train(server_round, samples, Local())
        epochs = self.settings.surrogate_epochs
        for name, held in self._surrogates.items():
            self._surrogates[name] = self._models.trained(
                server_round, name, held, samples, epochs, Local()
            )
        return self._models.trained(server_round, GLOBAL, weights, samples, epochs, Local())

    def _groups(self, uploads: Iterable[Upload]) -> Iterator[list[Upload]]:
        """Yield the uploads, up to ``together`` of equal form and size at a time."""
        for _, alike in groupby(uploads, self._kind):
            while group := list(islice(alike, self.settings.together)):
                yield group

    def _kind(self, upload: Upload) -> tuple[str, int]:
        return surrogate_of(self.run, upload.site.name), self._distillation.size(upload.site)

    def _distilled(
        self, server_round: int, weights: Weights, group: Sequence[Upload]
    ) -> Iterator[tuple[Upload, Tensor, Tensor]]:
        """Yield each upload with its images and labels; one that leads out of the finite numbers is rejected."""
        architecture, _ = self._kind(group[0])
        start = self._surrogate(weights, architecture)
        try:
            ended = [Ended(upload.site, upload.payload_as(Weights)) for upload in group]
            sets = self._distillation.distil(server_round, architecture, start, ended)
        except FloatingPointError as error:
            if len(group) == 1:
                self.round.reject(group[0], str(error))
                return
            for upload in group:  # whose it was shows where each is alone
                yield from self._distilled(server_round, weights, [upload])
            return
        for upload, (images, labels) in zip(group, sets, strict=True):
            yield upload, images, labels

    # ---- what was learned -----------------------------------------------------------------------------

    def learned(self, arrays: ArrayRecord) -> Mapping[str, ArrayRecord]:
        """Return the first of the global models."""
        return self._models.learned(arrays)

    def beside(self, arrays: ArrayRecord) -> Mapping[str, ArrayRecord]:
        """Return the other global models, and the surrogates."""
        others = {name: arrays_from(held) for name, held in self._surrogates.items()}
        return {**self._models.beside(arrays), **others}

    def pictures(self) -> Mapping[str, SyntheticImages]:
        """Return what was distilled of each site's weights in the last round."""
        return self._pictures

    def notes(self) -> Mapping[str, Any]:
        """Return L_MTT of each site before the first and the last step, and the student's step size."""
        return {"matching": self._distillation.notes}

    def state_dict(self) -> State:
        """Return all models but the run's own surrogate, and the latents where the next round goes on from them."""
        return {
            LEARNED: self._models.state_dict(),
            "surrogates": {name: dict(held.tensors) for name, held in self._surrogates.items()},
            "distillation": self._distillation.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Take them back."""
        self._models.load_state_dict(state[LEARNED])
        self._surrogates = {name: Weights(dict(held)) for name, held in state["surrogates"].items()}
        self._distillation.load_state_dict(state["distillation"])
