"""Random masking on the server: rebuild each site's mask from its seed (Konečný et al., 2016, section 3)."""

from __future__ import annotations

from torch import Tensor

from common.learning.run import Run
from common.specs.sparse import masked_spec
from common.wire.sparse import MaskedUpdate, MaskedUpdateSpec
from strategies.exchange.replies import Upload
from strategies.sparse import SparseAverage


class Masking(SparseAverage):
    """u_k = rate x (w_k - w_r) where the site's mask keeps it, 0 elsewhere: w_k - w_r in the mean over masks.

    Raises
    ------
    ConfigError
        If the rate leaves nothing of the model, or the model has running variances.
    """

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        self._spec = masked_spec(run)

    def expects(self) -> MaskedUpdateSpec:
        """Return the form of as many values as the mask of the seed that comes along keeps."""
        return self._spec

    def coordinates(self, upload: Upload) -> tuple[Tensor, Tensor]:
        """Return the places that the mask keeps and the values there, times the rate."""
        return upload.payload_as(MaskedUpdate).coordinates(self._spec)
