"""FedAvg on the device, with fine-tuning of what is judged."""

from __future__ import annotations

from client_app.fedavg import FedAvgClient
from client_app.local_training import train_aside
from common.models import Classifier
from common.settings.fedavg import FinetuneSettings
from common.wire.weights import Weights


class FinetuneClient(FedAvgClient):
    """Sends w_k as FedAvg's site does; it judges the shared model after some more training, which no message holds."""

    def judged(self, w: Weights) -> Classifier:
        """Return the shared model, trained on from ``w`` on the site's own images."""
        settings, model = self.settings(FinetuneSettings), self.model(w)
        tuning = settings.model_copy(update={"epochs": settings.tuning_epochs or settings.epochs})
        train_aside(self, model, tuning, "fine-tuning")
        return model
