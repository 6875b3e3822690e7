"""Low-rank updates on the device: train as FedAvg, send two factors of each matrix (Vogels et al., 2019)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from client_app.device import DeviceClient, phase
from client_app.local_training import fidelity, train_locally
from common.draws.seeding import generator
from common.settings.fedavg import LowRankSettings
from common.specs.sparse import LEFT, RIGHT, factors_spec, ranks_of, update_of
from common.wire.weights import Weights
from synth.sparse_updates import factors

#: what the names of what is remembered of a tensor begin with: what was left out of it, and its Q
_LEFT_OUT, _LAST = "left-out.", "last."


class LowRankClient(DeviceClient):
    """Sends P and Q of each matrix of u_k = w_k - w + e_k, and keeps e_k = u_k - P Q^T for the next time.

    The power iteration continues from the site's own last Q, as PowerSGD's does, and starts with one from the run's
    seed, the same at all sites.
    """

    @phase("train")
    def train(self, w: Weights) -> Weights:
        """Return the factors, and the update itself of what has none."""
        kept, names = self.recall() or {}, self.run.spec.names
        model, _ = train_locally(self, w)
        ended, start = Weights.of(model, copy=False).read_only, w.read_only
        trained = {n: ended[n] - start[n] for n in names if ended[n].is_floating_point()}
        update = {n: part + kept.get(_LEFT_OUT + n, 0) for n, part in trained.items()}
        sent = Weights(self._compressed({**ended, **update}, kept), w.codec)
        received = update_of(factors_spec(self.run).decode(sent.encode()), self.run)
        memory = {_LAST + n: part for n, part in sent.tensors.items() if n.endswith(RIGHT)}
        if self.settings(LowRankSettings).feedback:
            memory |= {
                _LEFT_OUT + n: (part - received[n]).to(part.dtype) for n, part in update.items()
            }
        self.remember(memory)
        self.report(**fidelity(*(_flat(each, trained) for each in (received, trained))))
        return sent

    def _compressed(
        self, state: Mapping[str, Tensor], kept: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        ranks, parts = ranks_of(self.run), dict[str, Tensor]()
        for name in self.run.spec.names:
            if name not in ranks:
                parts[name] = state[name]
                continue
            matrix = state[name].flatten(1)
            last = kept.get(_LAST + name + RIGHT)
            if last is None:
                draws = generator(self.run.config.seed, "low-rank-start", name)
                last = torch.randn(
                    matrix.shape[1], ranks[name], generator=draws, dtype=matrix.dtype
                )
            parts[name + LEFT], parts[name + RIGHT] = factors(matrix, last)
        return parts


def _flat(parts: Mapping[str, Tensor], names: Iterable[str]) -> Tensor:
    return torch.cat([parts[name].double().flatten() for name in names])
