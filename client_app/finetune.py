"""FedAvg on the device, with fine-tuning of what is judged."""

from __future__ import annotations

from client_app.fedavg import FedAvgClient
from common.learning.training import train
from common.models import Classifier
from common.settings.finetune import FinetuneSettings
from common.wire.weights import Weights


class FinetuneClient(FedAvgClient):
    """Sends w_k as FedAvg's site does; it judges the shared model after some more training, which no message holds."""

    def judged(self, w: Weights) -> Classifier:
        """Return the shared model, trained on from ``w`` on the site's own images."""
        settings, model = self.settings(FinetuneSettings), self.model(w)
        train(
            model,
            self.samples,
            settings.model_copy(update={"epochs": settings.tuning_epochs}),
            self.run.task,
            self.generator("fine-tuning"),
            server_round=self.server_round,
            precision=self.run.config.compute.precision,
        )
        return model
