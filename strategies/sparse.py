"""The server of the methods whose devices send parts of their updates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from common.learning.task import length, plus
from common.settings.fedavg import FedAvgSettings, MaskingSettings, TopKSettings
from common.wire.sparse import MaskedUpdate, TopKUpdate
from common.wire.weights import Weights
from strategies.averaging import share_of
from strategies.base import Strategy
from strategies.exchange.replies import Upload
from strategies.exchange.rules import Clipping, Rule, model_rule


class SparseAverage(Strategy):
    """w_{r+1} = w_r + sum_k p_k u_k, with u_k decoded from a site's part of w_k - w_r and FedAvg's p_k.

    Subclasses define what is sent (``expects``) and how it is decoded.
    """

    @abstractmethod
    def coordinates(self, upload: Upload) -> tuple[Tensor, Tensor]:
        """Return distinct places in the flat update, int64 [n], and u_k there, float64 [n]; elsewhere it is 0."""

    def validation_rules(self) -> Mapping[str, Rule]:
        """Accept an update whose resulting model is not far from the others'."""
        settings = self.run.config.settings
        assert isinstance(settings, MaskingSettings | TopKSettings)
        return {"": model_rule(codec=settings.values)}

    def resulting_model(self, weights: Weights, upload: Upload) -> Weights:
        """Return w_r + u_k."""
        places, values = self.coordinates(upload)
        update = torch.zeros(length(self.run.spec), dtype=torch.float64)
        return plus(weights, update.index_add_(0, places, values))

    def clipped(self, upload: Upload, clipping: Clipping) -> Upload:
        """Return the upload with each value times the share."""
        assert isinstance(upload.payload, MaskedUpdate | TopKUpdate)
        values = upload.payload.values * clipping.share
        return replace(upload, payload=replace(upload.payload, values=values))

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Sum the decoded uploads as they come, in one float64 buffer, and divide once."""
        summed = torch.zeros(length(self.run.spec), dtype=torch.float64)
        total = 0
        for upload in uploads:
            share = share_of(upload, self.run.settings(FedAvgSettings))
            total += share
            places, values = self.coordinates(upload)
            summed.index_add_(0, places, values, alpha=share)
            del upload, places, values  # or they are held while the next device works
        return plus(weights, summed / total)
