"""FedDyn on the device (Acar et al., 2021, Algorithm 1): a loss whose terms follow the site's own past."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from client_app.device import DeviceClient, phase
from client_app.local_training import train_locally
from client_app.state import Tensors
from common.learning.stacked import StepTerms
from common.learning.training import Local
from common.settings.fedavg import FedDynSettings
from common.wire.weights import Weights


class FedDynClient(DeviceClient):
    """Minimises F_k(w) - <g_k, w> + alpha/2 ||w - w_r||^2; g_k <- g_k - alpha (w_k - w_r), from 0 on."""

    @phase("train")
    def train(self, w: Weights) -> Weights:
        """Return w_k, trained from ``w`` on the site's images."""
        alpha, spec = self.settings(FedDynSettings).alpha, self.run.spec.parameters
        g = self._recalled(alpha)
        model, _ = train_locally(self, w, self._regularised(w, g, alpha) if alpha else Local())
        ended = Weights.of(model, w.codec)
        if alpha:
            self.remember({n: g[n] - alpha * (ended.tensors[n] - w.tensors[n]) for n in spec.names})
        return ended

    def course(self, given: Weights) -> StepTerms:
        """Return training by the same loss, of whose terms the gradient is alpha (w - w_r) - g_k."""
        alpha = self.settings(FedDynSettings).alpha
        return (
            StepTerms(given, mu=alpha, slope=self._recalled(alpha)) if alpha else StepTerms(given)
        )

    def _recalled(self, alpha: float) -> Tensors:
        return (self.recall() if alpha else None) or self.run.spec.parameters.zeros().tensors

    def _regularised(self, w: Weights, g: Tensors, alpha: float) -> Local:
        slopes = [g[name].to(self.run.device) for name in self.run.spec.trained]
        centre = [w.tensors[name].to(self.run.device) for name in self.run.spec.trained]

        def penalty(model: nn.Module) -> Tensor:
            parts = zip(model.parameters(), slopes, centre, strict=True)
            each = [alpha / 2 * (p - c).square().sum() - (s * p).sum() for p, s, c in parts]
            return torch.stack(each).sum()

        return Local(penalty=penalty)
