"""FedProx on the device (Li et al., 2020): local training that stays near the round's weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from client_app.device import DeviceClient, phase
from client_app.local_training import train_locally
from common.learning.training import Local
from common.settings.fedprox import FedProxSettings
from common.wire.weights import Weights


class FedProxClient(DeviceClient):
    """Minimises F_k(w) + mu/2 ||w - w_r||^2 (Eq. 2)."""

    @phase("train")
    def train(self, w: Weights) -> Weights:
        """Return w_k, trained from ``w`` on the site's images."""
        model, _ = train_locally(self, w, pulled(self, w, self.settings(FedProxSettings).mu))
        return Weights.of(model, w.codec)


def pulled(client: DeviceClient, w: Weights, mu: float) -> Local:
    """Return local training with a pull of strength ``mu`` to ``w``: FedProx's, which FedNova can have too."""
    if not mu:
        return Local()
    centre = [p.detach() for p in client.model(w).parameters()]

    def penalty(model: nn.Module) -> Tensor:
        moved = zip(model.parameters(), centre, strict=True)
        return mu / 2 * torch.stack([(p - c).square().sum() for p, c in moved]).sum()

    return Local(penalty=penalty)
