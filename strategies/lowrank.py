"""Low-rank updates on the server: the average of the products of the sites' factors (Vogels et al., 2019)."""

from __future__ import annotations

from dataclasses import replace

from common.specs.sparse import factors_spec, update_of
from common.wire.weights import Weights, WeightsSpec
from strategies.exchange.replies import Upload
from strategies.fedavg import FedAvg


class LowRank(FedAvg):
    """w_{r+1} = w_r + sum_k p_k P_k Q_k^T, with FedAvg's p_k.

    PowerSGD's workers sum their P, make its columns orthonormal, and sum their Q, so that all have one approximation.
    Nothing is summed between sites: each has its own factors, and the mean of their products has a rank up to
    the number of sites times r.
    """

    def expects(self) -> WeightsSpec:
        """Return the form of the update's factors."""
        return factors_spec(self.run)

    def prepare(self, server_round: int, weights: Weights, upload: Upload) -> Upload:
        """Return the upload as the model that its factors lead to."""
        update = update_of(upload.payload_as(Weights), self.run)
        moved = {
            name: (start.double() + update[name]).to(start.dtype)
            if start.is_floating_point()
            else update[name]
            for name, start in weights.read_only.items()
        }
        return replace(upload, payload=Weights(moved, weights.codec))
