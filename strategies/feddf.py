"""FedDF on the server (Lin et al., 2020, Algorithm 1): the average, distilled to answer as all models together."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from common.errors import ConfigError
from common.learning.run import Run
from common.learning.training import plain
from common.specs.logits import answer_of_all, answers, public_samples
from common.wire.weights import Weights
from strategies.exchange.replies import Upload
from strategies.fedavg import FedAvg
from strategies.public_images import public_images
from strategies.surrogate import learned_from


class FedDF(FedAvg):
    """FedAvg, whose average then learns the answer of all sites' models to public images; one model at a time is held.

    Raises
    ------
    ConfigError
        If there are no such images, or a part of the model stays at the sites.
    """

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        if run.config.model.stays_in_part:
            raise ConfigError(
                f"{run.config.model.what_stays} leaves a part of the model at the sites, and method=feddf asks the "
                "sites' complete models at the server: leave it out"
            )
        self._images = public_images(run)

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Return the average of the weights, trained on the images and the models' answer to them."""
        self._answers: list[Tensor] = []
        average = super().update(server_round, weights, uploads)
        together, self._answers = answer_of_all(self.run, self._answers), []
        samples = public_samples(self.run, self._images, together)
        return learned_from(self.run, server_round, average, samples, plain(self.run.task))

    def take(self, upload: Upload) -> None:
        """Note the logits of the site's model."""
        model = self.run.model_with(self.model_of(upload))
        self._answers.append(answers(self.run, model, self._images))
