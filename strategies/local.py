"""Local training on the server, the lower bound: the sites' own models are evaluated, and not changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flwr.app import ArrayRecord

from common.learning.run import Run
from common.wire.weights import Weights
from strategies.base import LEARNED, State
from strategies.exchange.instructions import arrays_from
from strategies.exchange.replies import Upload
from strategies.exchange.rules import Rule, model_rule
from strategies.fedavg import FedAvg


class Local(FedAvg):
    """Keeps the newest model of every site, for the test set: a run's figure is the mean over them."""

    clips = False  # nothing is averaged

    judged_from_memory = True  # each site its own model

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        self._models: dict[str, Weights] = {}

    def validation_rules(self) -> Mapping[str, Rule]:
        """Accept a model near the others' length; no other site receives it."""
        return {"": model_rule("the mean over the sites' figures", "the run's checkpoints")}

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Keep what came, and return the weights as they were."""
        for upload in uploads:
            self._models[upload.site.name] = self.model_of(upload)
        return weights

    def global_models(self, arrays: ArrayRecord) -> Mapping[str, ArrayRecord]:
        """Return the sites' models by site; before the first round, the start."""
        if not self._models:
            return super().global_models(arrays)
        return {site: arrays_from(self._models[site]) for site in sorted(self._models)}

    def state_dict(self) -> State:
        """Return the sites' models."""
        return {LEARNED: {site: dict(model.tensors) for site, model in self._models.items()}}

    def load_state_dict(self, state: State) -> None:
        """Restore the state."""
        self._models = {site: Weights(dict(each)) for site, each in state[LEARNED].items()}
