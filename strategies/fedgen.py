"""FedGEN on the server (Zhu, Hong and Zhou, 2021): FedAvg, and a generator of latents learned from the sites' heads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from common.draws.seeding import generator
from common.errors import DivergedError
from common.learning.run import Run
from common.specs.fedgen import (
    CLASSES,
    GENERATOR,
    WEIGHTS,
    head_of,
    new_generator,
    settings_of,
)
from common.wire.bundle import Bundle
from common.wire.tensors import class_list
from common.wire.weights import Weights
from strategies.base import State
from strategies.exchange.replies import Upload
from strategies.fedavg import FedAvg
from synth.feature_generator import GeneratorTraining, linear_heads

_TRAINING, _CLASSES = "training", "classes"


class FedGEN(FedAvg):
    """Averages as FedAvg, and trains G against the heads that came, each before it is averaged.

    Of an upload only the head is kept until the round's end: K C (d + 1) numbers besides the one copy of the model that
    averaging takes. From when G has learned it is sent with the weights, in the codec of theirs.
    """

    needs_class_counts = True

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        self.settings = settings_of(run)
        self._head = head_of(run)
        self._generator = new_generator(run)
        self._training = GeneratorTraining(
            self._generator,
            lr=self.settings.generator_lr,
            weight_decay=self.settings.generator_weight_decay,
            decay=self.settings.generator_lr_decay,
        )
        self._classes: set[int] = set()
        self._told: dict[str, float] = {}

    def sends(self, weights: Weights) -> Bundle:
        """Return the weights, and G once it has learned."""
        if not self._classes:
            return Bundle({WEIGHTS: weights})
        learned = Weights.of(self._generator, self.run.config.wire.whole_weights)
        classes = class_list(sorted(self._classes))
        return Bundle({WEIGHTS: weights, GENERATOR: learned, CLASSES: classes})

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Average the weights as they come, then train G against their heads."""
        self._heads: list[tuple[Tensor, Tensor, tuple[int, ...]]] = []
        mean = super().update(server_round, weights, uploads)
        self._learn(server_round)
        return mean

    def take(self, upload: Upload) -> None:
        """Keep the head [C, d], its bias [C] and the site's class counts n_{k,y}."""
        head = self._head.of(upload.payload_as(Weights))
        self._heads.append((*head, upload.site.class_counts))

    def _learn(self, server_round: int) -> None:
        """Train G for a round; DivergedError if that leaves the finite numbers."""
        settings, device = self.settings, self.run.device
        matrices, biases, held = zip(*self._heads, strict=True)
        self._heads = []
        counts = torch.tensor(held, dtype=torch.float32, device=device)
        draws = generator(self.run.config.seed, "fedgen", server_round, device=device)
        try:
            loss = self._training.train_round(
                linear_heads(torch.stack(matrices).to(device), torch.stack(biases).to(device)),
                counts,
                draws,
                steps=settings.generator_steps,
                batch=settings.generator_batch,
                eta=settings.diversity,
            )
        except FloatingPointError as error:
            raise DivergedError(
                f"round {server_round} is not kept: {error} (fedgen.generator_lr)"
            ) from None
        self._classes |= set(counts.sum(0).nonzero().flatten().tolist())
        self._told = {"generator-loss": loss}

    def notes(self) -> Mapping[str, Any]:
        """Return the mean of the generator's loss over the round's steps."""
        return self._told

    def state_dict(self) -> State:
        """Return G with what its training keeps, and the classes that it has learned of."""
        return {_TRAINING: self._training.state(), _CLASSES: sorted(self._classes)}

    def load_state_dict(self, state: State) -> None:
        """Restore the state."""
        self._training.restore(state[_TRAINING])
        self._classes = set(state[_CLASSES])
