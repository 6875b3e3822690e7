"""FedAvg on the server (McMahan et al., 2017): the average of the devices' models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from common.settings.fedavg import FedAvgSettings
from common.wire.weights import Weights
from strategies.averaging import share_of
from strategies.base import Strategy
from strategies.exchange.replies import Upload
from strategies.exchange.rules import Rule, model_rule


class FedAvg(Strategy):
    """w_{r+1} = sum_k p_k w_k, with p_k = n_k / n (``counts``) or 1 / |S_t| (``uniform``)."""

    def validation_rules(self) -> Mapping[str, Rule]:
        """Accept a model whose update is not far longer than the others'."""
        return {"": model_rule()}

    def resulting_model(self, weights: Weights, upload: Upload) -> Weights:
        """Return the site's model."""
        return self.model_of(upload)

    def model_of(self, upload: Upload) -> Weights:
        """Return the weights that a site ended with."""
        return upload.payload_as(Weights)

    def share(self, upload: Upload) -> int:
        """Return p_k, before all of them are scaled to a sum of one."""
        return share_of(upload, self.run.settings(FedAvgSettings))

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Sum the uploads as they come, in float64, and divide once: one copy of the model in memory."""
        mean = self.average(weights)
        for upload in uploads:
            self.take(upload)
            share, model = self.share(upload), [self.model_of(upload)]
            del upload  # so that the mean alone holds the model, and frees it as it adds it
            mean.add(model.pop(), share)
        return mean.result()

    def take(self, upload: Upload) -> None:
        """Make further use of an accepted upload before it is released; by default nothing."""
