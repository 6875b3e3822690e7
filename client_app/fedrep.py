"""FedRep on the device (Collins et al., 2021, Algorithm 1): first the head, which stays at the site, then the body."""

from __future__ import annotations

from client_app.device import DeviceClient, phase
from client_app.local_training import train_aside
from common.settings.fedavg import FedRepSettings
from common.wire.weights import Weights


class FedRepClient(DeviceClient):
    """Trains its own part with the shared one held, then the shared one with its own held."""

    @phase("train")
    def train(self, w: Weights) -> Weights:
        """Return the weights that it ends with, without the part that stays at the site."""
        settings, model = self.settings(FedRepSettings), self.model(w)
        for part, epochs in (("head", settings.head_epochs), ("body", settings.epochs)):
            for name, parameter in model.named_parameters():
                parameter.requires_grad_((name in w.read_only) == (part == "body"))
            turn = settings.model_copy(update={"epochs": epochs})
            trained = train_aside(self, model, turn, f"local-training of the {part}")
        self.keep_own_part(model)
        self.report(train_loss=trained.loss)
        return Weights.of(model, w.codec, copy=False)
