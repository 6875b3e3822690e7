"""Random masking on the device: train as FedAvg, send what a mask keeps (Konečný et al., 2016, section 3)."""

from __future__ import annotations

from client_app.device import phase
from client_app.sparse import SparseClient
from common.draws.seeding import derive
from common.settings.fedavg import MaskingSettings
from common.specs.sparse import masked_spec
from common.wire.sparse import MaskedUpdate
from common.wire.weights import Weights


class MaskingClient(SparseClient):
    """Draws another mask each round, of which only the seed travels."""

    @phase("train")
    def train(self, w: Weights) -> MaskedUpdate:
        """Return the kept numbers of w_k - w."""
        settings, spec = self.settings(MaskingSettings), masked_spec(self.run)
        update = self.trained_update(w)
        seed = derive(self.run.config.seed, "mask", self.server_round, self.drawn_as)
        sent = MaskedUpdate.of(update, spec, seed, settings.values)
        received = spec.decode(sent.encode())
        self.report_fidelity(update, *received.coordinates(spec))
        return sent
