"""FedNova on the server (Wang et al., 2020): updates are normalised by the sites' steps before they are averaged."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from common.errors import PayloadError
from common.settings.fedavg import FedNovaSettings
from common.specs.averaging import NORMALIZER, normalizer_of
from common.wire.weights import Weights
from strategies.exchange.replies import Upload
from strategies.fedavg import FedAvg


class FedNova(FedAvg):
    """w_{r+1} = w_r + tau_eff sum_k p_k (w_k - w_r) / ||a_k||_1, tau_eff = sum_k p_k ||a_k||_1 (Eq. 6 and 8).

    Running statistics are no solution of a descent and are averaged as they are.
    """

    def prepare(self, server_round: int, weights: Weights, upload: Upload) -> Upload:
        """Refuse a normalizer that is not that of the site's steps: a small one would make an update of any length."""
        settings = self.run.settings(FedNovaSettings)
        expected = normalizer_of(self.run.config, settings, server_round, upload.examples)
        message = upload.metrics.get(NORMALIZER, math.nan)
        if not math.isclose(message, expected, rel_tol=1e-6):
            raise PayloadError(
                f"its {NORMALIZER} is {message:g} where the requested steps make it {expected:g}"
            )
        return upload

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Average the normalised updates and their normalizers as they come."""
        spec, one = self.run.spec, torch.ones((), dtype=torch.float64)
        start = weights.only(spec.parameters).read_only
        rest = spec.only(frozenset(spec.names).difference(spec.trained))
        like = {**{n: t.double() for n, t in start.items()}, NORMALIZER: one}
        moved, ended = self.average(Weights(like), {NORMALIZER}), self.average(weights.only(rest))
        for upload in uploads:
            share, a, model = self.share(upload), upload.metrics[NORMALIZER], self.model_of(upload)
            steps = {n: (model.read_only[n].double() - t) / a for n, t in start.items()}
            moved.add(Weights({**steps, NORMALIZER: a * one}), share)
            ended.add(model.only(rest), share)
            del upload, model, steps  # or they are held while the next device works
        mean, ends = moved.result().tensors, ended.result().tensors
        effective = mean[NORMALIZER]
        solved = {n: (t + effective * mean[n]).to(t.dtype) for n, t in start.items()}
        new = {**ends, **solved}
        return Weights({n: new[n] for n in weights.read_only}, weights.codec)
