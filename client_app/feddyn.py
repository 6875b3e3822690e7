"""FedDyn on the device (Acar et al., 2021, Algorithm 1): a loss whose terms follow the site's own past."""

from __future__ import annotations

from client_app.device import DeviceClient, phase
from client_app.local_training import trained_weights
from common.learning.training import Local
from common.settings.fedavg import FedDynSettings
from common.wire.weights import Weights


class FedDynClient(DeviceClient):
    """Minimises F_k(w) - <g_k, w> + alpha/2 ||w - w_r||^2; g_k <- g_k - alpha (w_k - w_r), from 0 on."""

    @phase("train")
    def train(self, w: Weights) -> Weights:
        """Return w_k, trained from ``w`` on the site's images."""
        alpha, local = self.settings(FedDynSettings).alpha, self.local(w)
        ended, _ = trained_weights(self, w, local)
        if alpha:
            kept = (
                (n, g - alpha * (ended.tensors[n] - w.tensors[n])) for n, g in local.slope.items()
            )
            self.remember(dict(kept))
        return ended

    def local(self, given: Weights) -> Local:
        """Return training by that loss, of whose terms the gradient is alpha (w - w_r) - g_k."""
        if not (alpha := self.settings(FedDynSettings).alpha):
            return Local()
        return Local(mu=alpha, slope=self.recall() or self.run.spec.parameters.zeros().tensors)
