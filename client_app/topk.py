"""Top-k on the device: train as FedAvg, send the largest numbers of the update (Aji and Heafield, 2017)."""

from __future__ import annotations

from client_app.device import phase
from client_app.sparse import SparseClient
from common.settings.fedavg import TopKSettings
from common.specs.sparse import top_k_spec
from common.wire.sparse import TopKUpdate
from common.wire.weights import Weights


class TopKClient(SparseClient):
    """Sends the k largest magnitudes; there is no error feedback, as the device keeps nothing between rounds."""

    @phase("train")
    def train(self, w: Weights) -> TopKUpdate:
        """Return the k largest numbers of w_k - w, with their places."""
        settings, spec = self.settings(TopKSettings), top_k_spec(self.run)
        update = self.trained_update(w)
        sent = TopKUpdate.of(update, spec, settings.values)
        received = spec.decode(sent.encode())
        self.report_fidelity(update, *received.coordinates())
        return sent
