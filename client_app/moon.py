"""MOON on the device (Li et al., 2021, Algorithm 1): representations drawn to the global model's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from client_app.device import DeviceClient, phase
from client_app.local_training import trained_weights
from common.learning.training import Local
from common.models import Classifier
from common.settings.fedavg import MOONSettings
from common.wire.weights import Weights


class MOONClient(DeviceClient):
    """Minimises the task's loss + mu l_con, with the site's last models as negatives.

    What is contrasted is what enters the classifier: with ``model.projection`` the projections, as in the paper, and
    without it the embeddings. In a site's first round its last model is the global one, of which the paper's
    contrast is a constant; it is left out there.
    """

    @phase("train")
    def train(self, w: Weights) -> Weights:
        """Return w_k, trained from ``w`` on the site's images."""
        settings = self.settings(MOONSettings)
        earlier = [self.recall(str(i)) for i in range(settings.pool)]
        kept = [Weights(tensors) for tensors in earlier if tensors is not None]
        local = self._contrasting(w, kept, settings) if settings.mu and kept else Local()
        ended, _ = trained_weights(self, w, local)
        for i, one in enumerate([ended, *kept][: settings.pool]):
            self.remember(one.tensors, str(i))
        return ended

    def _contrasting(self, w: Weights, kept: Sequence[Weights], settings: MOONSettings) -> Local:
        task = self.run.task
        toward, away = self._frozen(w), [self._frozen(one) for one in kept]

        def objective(model: nn.Module, x: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
            assert isinstance(model, Classifier)
            z = model.embed(x)
            with torch.no_grad():
                positive, negatives = toward.embed(x), [one.embed(x) for one in away]
            contrast = contrastive(z, positive, negatives, settings.temperature)
            return task.loss(model.classify(z), targets) + settings.mu * contrast

        return Local(objective=objective)

    def _frozen(self, weights: Weights) -> Classifier:
        return self.model(weights).eval().requires_grad_(False)


def contrastive(
    z: Tensor, positive: Tensor, negatives: Sequence[Tensor], temperature: float
) -> Tensor:
    """Return the mean of -log e^{s(z, z_glob)} / (e^{s(z, z_glob)} + sum e^{s(z, z_prev)}), s = sim / tau (Eq. 3).

    Parameters
    ----------
    z, positive : Tensor
        Float [n, ...], the representations of the model that is trained and of the global one.
    negatives : sequence of Tensor
        Those of the site's earlier models.
    temperature : float
        tau.
    """
    others = torch.stack([positive, *negatives]).flatten(2)
    similarities = F.cosine_similarity(z.flatten(1), others, dim=-1) / temperature
    return F.cross_entropy(similarities.T, torch.zeros(len(z), dtype=torch.int64, device=z.device))
