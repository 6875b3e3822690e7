"""Top-k on the server: average the largest numbers of the sites' updates (Aji and Heafield, 2017)."""

from __future__ import annotations

from torch import Tensor

from common.learning.run import Run
from common.specs.sparse import top_k_spec
from common.wire.sparse import TopKUpdate, TopKUpdateSpec
from strategies.exchange.replies import Upload
from strategies.sparse import SparseAverage


class TopK(SparseAverage):
    """u_k = w_k - w_r at its k largest magnitudes, 0 elsewhere; nothing is scaled, so that u_k is too short.

    There is no error feedback, which would add to an update what earlier rounds did not send: a device of a large
    federation takes part too seldom to keep a residual, and FedSynth's comparison has none.

    Raises
    ------
    ConfigError
        If the rate leaves no room for a single number of the model's.
    """

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        self._spec = top_k_spec(run)

    def expects(self) -> TopKUpdateSpec:
        """Return the form of exactly k values and their places."""
        return self._spec

    def coordinates(self, upload: Upload) -> tuple[Tensor, Tensor]:
        """Return the places that were sent and the values there."""
        return upload.payload_as(TopKUpdate).coordinates()
