"""The devices of the methods that send a part of FedAvg's update: its largest numbers, or what a mask keeps."""

from __future__ import annotations

import torch
from torch import Tensor

from client_app.device import DeviceClient, phase
from client_app.local_training import fidelity, train_locally
from common.draws.seeding import derive
from common.learning.task import difference
from common.settings.fedavg import MaskingSettings, TopKSettings
from common.specs.sparse import masked_spec, top_k_spec
from common.wire.sparse import MaskedUpdate, TopKUpdate
from common.wire.weights import Weights


class SparseClient(DeviceClient):
    """Trains as FedAvg's client does, to the bit; a subclass's phase sends part of what that changed.

    What is not sent is lost: the device keeps nothing between rounds.
    """

    def trained_update(self, w: Weights) -> Tensor:
        """Train E epochs from ``w`` and return w_k - w, flat, float32 [P] on the CPU."""
        model, _ = train_locally(self, w)
        return difference(Weights.of(model, copy=False), w)

    def report_fidelity(self, update: Tensor, places: Tensor, values: Tensor) -> None:
        """Report how near the ``values`` that the server reads at ``places`` come to the whole ``update``."""
        received = torch.zeros(len(update), dtype=torch.float64)
        received[places] = values
        self.report(**fidelity(received, update))


class TopKClient(SparseClient):
    """Sends the k largest magnitudes (Aji and Heafield, 2017), without error feedback."""

    @phase("train")
    def train(self, w: Weights) -> TopKUpdate:
        """Return the k largest numbers of w_k - w, with their places."""
        settings, spec = self.settings(TopKSettings), top_k_spec(self.run)
        update = self.trained_update(w)
        sent = TopKUpdate.of(update, spec, settings.values)
        self.report_fidelity(update, *spec.decode(sent.encode()).coordinates())
        return sent


class MaskingClient(SparseClient):
    """Draws another mask each round, of which only the seed is sent (Konečný et al., 2016, section 3)."""

    @phase("train")
    def train(self, w: Weights) -> MaskedUpdate:
        """Return the kept numbers of w_k - w."""
        settings, spec = self.settings(MaskingSettings), masked_spec(self.run)
        update = self.trained_update(w)
        seed = derive(self.run.config.seed, "mask", self.server_round, self.drawn_as)
        sent = MaskedUpdate.of(update, spec, seed, settings.values)
        self.report_fidelity(update, *spec.decode(sent.encode()).coordinates(spec))
        return sent
