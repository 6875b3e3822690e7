"""FedAvg on the server (McMahan et al., 2017): the average of the devices' models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from common.settings.fedavg import FedAvgSettings
from common.sites import Site
from common.wire import Weights
from strategies.base import Instruction, Strategy
from strategies.exchange.replies import Upload


class FedAvg(Strategy):
    """w_{r+1} = sum_k p_k w_k, with p_k = n_k / n (``counts``) or 1 / |S_t| (``uniform``)."""

    def instructions(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Send the weights, expect trained ones."""
        train = Instruction("train", weights, self.run.spec)
        return {site.name: train for site in sites}

    def leads_to(self, weights: Weights, upload: Upload) -> Weights:
        """Return the site's model."""
        assert isinstance(upload.payload, Weights)
        return upload.payload

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Sum the uploads as they come, in float64, and divide once: one copy of the model in memory."""
        settings = self.run.config.settings
        assert isinstance(settings, FedAvgSettings)
        sums = {
            name: torch.zeros_like(t, dtype=torch.float64) for name, t in weights.tensors.items()
        }
        total = 0
        for upload in uploads:
            assert isinstance(upload.payload, Weights)
            share = upload.examples if settings.weighting == "counts" else 1
            total += share
            for name, tensor in upload.payload.tensors.items():
                sums[name].add_(tensor, alpha=share)
        mean = {name: (s / total).to(weights.tensors[name].dtype) for name, s in sums.items()}
        return Weights(mean, weights.codec)
