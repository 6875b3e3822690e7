"""FedDGM on the server (Jia et al., 2023, Algorithm 1): images distilled of the sites' surrogates, models of those."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from common.data import Samples
from common.errors import ConfigError, PayloadError
from common.run import Run
from common.seeding import generator
from common.settings.training import TrainingSettings
from common.sites import Site
from common.specs.feddgm import settings_of, surrogate_of
from common.training import train
from common.wire import SyntheticImages, Weights
from strategies.base import GLOBAL, LEARNED, Instruction, State, Strategy
from strategies.exchange.replies import Upload
from strategies.surrogate_distillation import Ended, SurrogateDistillation

#: the name under which the run's own surrogate is judged beside the global models
SURROGATE = "surrogate"


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
        if run.config.evaluation.on in ("sites", "both"):
            raise ConfigError(
                f"evaluation.on={run.config.evaluation.on} has the sites judge the model that they were sent, and "
                "method=feddgm learns others at the server: set evaluation.on=server"
            )
        self.needs_class_counts = self.settings.classes == "known"
        self._distillation = SurrogateDistillation(run)
        self._models = {name: _start(run, name) for name in self.settings.learned()}
        self._surrogates = {
            name: _start(run, name) for name in run.architectures if name not in self._models
        }
        self._pictures: dict[str, SyntheticImages] = {}

    # ---- a round --------------------------------------------------------------------------------------

    def instructions(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Send each site theta_g of its architecture, expect it trained."""
        return {
            site.name: self._train(weights, surrogate_of(self.run, site.name)) for site in sites
        }

    def _train(self, weights: Weights, architecture: str) -> Instruction:
        run = self.run.with_model(architecture)
        return Instruction("train", self._surrogate(weights, architecture), run.spec)

    def _surrogate(self, weights: Weights, architecture: str) -> Weights:
        if not architecture:
            return weights
        return Weights(self._surrogates[architecture].tensors, weights.codec)

    def leads_to(self, weights: Weights, upload: Upload) -> Weights | None:
        """Return the site's surrogate; None of one of another architecture than the run's: there is none to compare."""
        return None if surrogate_of(self.run, upload.site.name) else _sent(upload)

    def prepare(self, server_round: int, weights: Weights, upload: Upload) -> Upload:
        """Refuse weights that are those the site was sent: no trajectory leads from there to there."""
        sent = self._surrogate(weights, surrogate_of(self.run, upload.site.name)).tensors
        if all(torch.equal(tensor, sent[name]) for name, tensor in _sent(upload).tensors.items()):
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
        self.require_quorum(server_round)
        samples = union.samples()
        for name, held in self._models.items():
            self._models[name] = self._learned(server_round, name, held, samples)
        for name, held in self._surrogates.items():
            self._surrogates[name] = self._learned(server_round, name, held, samples)
        return self._learned(server_round, GLOBAL, weights, samples)

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
            sets = self._distillation.distil(
                server_round, architecture, start, [Ended(u.site, _sent(u)) for u in group]
            )
        except FloatingPointError as error:
            if len(group) == 1:
                self.reject(server_round, group[0], str(error))
                return
            for upload in group:  # whose it was shows where each is alone
                yield from self._distilled(server_round, weights, [upload])
            return
        for upload, (images, labels) in zip(group, sets, strict=True):
            yield upload, images, labels

    def _learned(self, server_round: int, name: str, start: Weights, samples: Samples) -> Weights:
        """Return a model trained from ``start`` on the round's images."""
        s, config = self.settings, self.run.config
        epochs = s.global_epochs if name in self._models else s.surrogate_epochs
        if not epochs:
            return start
        model = self.run.with_model(name).build_model()
        start.load_into(model)
        train(
            model,
            samples,
            TrainingSettings(
                epochs=epochs,
                lr=s.global_lr,
                batch=s.global_batch,
                momentum=s.global_momentum,
            ),
            self.run.task,
            generator(config.seed, "feddgm", server_round, name, device=self.run.device),
            precision=config.compute.precision,
        )
        return Weights.of(model, start.codec)

    # ---- what was learned -----------------------------------------------------------------------------

    def learned(self, arrays: ArrayRecord) -> Mapping[str, ArrayRecord]:
        """Return the first of the global models."""
        first, *_ = self._models
        return {first: self.arrays_from(self._models[first])}

    def beside(self, arrays: ArrayRecord) -> Mapping[str, ArrayRecord]:
        """Return the other global models, and the surrogates."""
        _, *others = self._models.items()
        rest = [*others, *self._surrogates.items()]
        return {SURROGATE: arrays, **{name: self.arrays_from(held) for name, held in rest}}

    def pictures(self) -> Mapping[str, SyntheticImages]:
        """Return what was distilled of each site's weights in the last round."""
        return self._pictures

    def notes(self) -> Mapping[str, Any]:
        """Return L_MTT of each site before the first and the last step, and the student's step size."""
        return {"matching": self._distillation.notes}

    def state_dict(self) -> State:
        """Return all models but the run's own surrogate, and the latents where the next round goes on from them."""
        return {
            LEARNED: {name: dict(held.tensors) for name, held in self._models.items()},
            "surrogates": {name: dict(held.tensors) for name, held in self._surrogates.items()},
            "distillation": self._distillation.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Take them back."""
        self._models = {name: Weights(dict(held)) for name, held in state[LEARNED].items()}
        self._surrogates = {name: Weights(dict(held)) for name, held in state["surrogates"].items()}
        self._distillation.load_state_dict(state["distillation"])


def _sent(upload: Upload) -> Weights:
    assert isinstance(upload.payload, Weights)
    return upload.payload


def _start(run: Run, architecture: str) -> Weights:
    """Return a model's initial weights."""
    return Weights.of(run.with_model(architecture).build_model())
