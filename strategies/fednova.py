"""FedNova on the server (Wang et al., 2020): updates are normalised by the sites' steps before they are averaged."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from common.errors import PayloadError
from common.settings.fednova import FedNovaSettings
from common.specs.fednova import NORMALIZER, normalizer_of
from common.wire.weights import Weights
from strategies.averaging import Mean
from strategies.exchange.replies import Upload
from strategies.fedavg import FedAvg


class FedNova(FedAvg):
    """w_{r+1} = w_r + tau_eff sum_k p_k (w_k - w_r) / ||a_k||_1, tau_eff = sum_k p_k ||a_k||_1 (Eq. 6 and 8).

    Running statistics are no solution of a descent and are averaged as they are.
    """

    def prepare(self, server_round: int, weights: Weights, upload: Upload) -> Upload:
        """Refuse a normalizer that is not that of the site's steps: a small one would make an update of any length."""
        settings, privacy = self.run.settings(FedNovaSettings), self.run.config.privacy
        expected = normalizer_of(settings, privacy, server_round, upload.examples)
        said = upload.metrics.get(NORMALIZER, math.nan)
        if not math.isclose(said, expected, rel_tol=1e-6):
            raise PayloadError(
                f"its {NORMALIZER} is {said:g} where the steps that it was asked for make it {expected:g}"
            )
        return upload

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Sum the normalised updates and the normalizers as they come."""
        parameters, mean = self.run.spec.parameters, Mean(weights)
        start = weights.only(parameters).read_only
        summed = {n: torch.zeros_like(t, dtype=torch.float64) for n, t in start.items()}
        effective = 0.0
        for upload in uploads:
            share, a, ended = self.share(upload), upload.metrics[NORMALIZER], self.model_of(upload)
            mean.add(ended, share)
            effective += share * a
            for name, total in summed.items():
                total.add_(ended.read_only[name].double() - start[name], alpha=share / a)
            del upload, ended  # or they are held while the next device works
        scale = effective / mean.total**2
        moved = {n: (t + summed[n] * scale).to(t.dtype) for n, t in start.items()}
        return Weights(moved, weights.codec).over(mean.result())
