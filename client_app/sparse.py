"""The device of the methods that send a part of FedAvg's update."""

from __future__ import annotations

import torch
from torch import Tensor

from client_app.device import DeviceClient
from client_app.local_training import fidelity, train_locally
from common.learning.task import difference
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
