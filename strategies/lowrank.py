"""Low-rank updates on the server: the average of the products of the sites' factors (Vogels et al., 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from common.learning.run import Run
from common.sites import Site
from common.specs.sparse import factors_spec, update_of
from common.wire.weights import Weights
from strategies.base import Instruction
from strategies.exchange.replies import Upload
from strategies.fedavg import FedAvg


class LowRank(FedAvg):
    """w_{r+1} = w_r + sum_k p_k P_k Q_k^T, with FedAvg's p_k.

    PowerSGD's workers sum their P, make its columns orthonormal, and sum their Q, so that all have one approximation.
    Nothing is summed between sites: each has its own factors, and the mean of their products has a rank up to
    the number of sites times r.
    """

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        self._expects = factors_spec(run)

    def instructions(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Send the weights, expect factors of the update."""
        train = Instruction("train", weights, self._expects)
        return {site.name: train for site in sites}

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
