"""FedAF on the server (Wang et al., CVPR 2024): learns from condensed images and soft labels; averages no model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from common.errors import PayloadError
from common.learning.run import Run
from common.learning.training import Objective
from common.settings.feddm import FedAFSettings
from common.specs.logits import IMAGES, LOGITS, OTHERS, SHARES, WEIGHTS, fedaf_reply_spec
from common.wire.bundle import Bundle
from common.wire.coders import require_shares
from common.wire.form import Payload, Spec
from common.wire.images import SyntheticImages
from common.wire.tensors import LABELS, VECTORS, Tensors, latent_means
from common.wire.weights import Weights
from strategies.base import State
from strategies.exchange.replies import Upload
from strategies.exchange.rules import CandidateModel, Rule
from strategies.feddm import FedDM
from synth.aggregation_free import knowledge_gap

_OTHERS = "others"


class FedAF(FedDM):
    """FedDM's server with L_LGKM added to the cross-entropy, which sends V with the next round's weights."""

    phase = "condense"

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        self._own = run.settings(FedAFSettings)
        self._others: Tensors | None = None
        self._shares: Tensors | None = None

    def sends(self, weights: Weights) -> Payload:
        """Return w_r, and V from the second round."""
        others = {} if self._others is None else {OTHERS: self._others}
        return Bundle({WEIGHTS: weights, **others})

    def expects(self) -> Spec:
        """Return the form of images, V_k and R_k."""
        return fedaf_reply_spec(self.run, super().expects())

    def validation_rules(self) -> Mapping[str, Rule]:
        """Believe images in range, mean logits as long as the others', and shares that sum to 1."""
        reaches, stays = "the server's training", "one round"

        def alone(_: Weights, __: Upload, sent: Tensors) -> None:
            require_shares("its soft labels", sent[VECTORS])

        return {
            IMAGES: super().validation_rules()[""],
            LOGITS: Rule(
                "what a site cuts its logits to; `federation.clip`, relative to the round's others",
                "every site's next round",
                "the run's checkpoints",
                candidate=_longest_row,
            ),
            SHARES: Rule("each in [0, 1], all of a class sum to 1", reaches, stays, alone),
        }

    def prepare(self, server_round: int, weights: Weights, upload: Upload) -> Upload:
        """Refuse an upload whose three parts speak of different classes."""
        sent = upload.payload_as(Bundle)
        spoken = {tuple(sent.part(name, Tensors)[LABELS].tolist()) for name in (LOGITS, SHARES)}
        shown = set(sent.part(IMAGES, SyntheticImages).labels.tolist())
        if len(spoken) > 1 or not shown <= set(*spoken):
            raise PayloadError("its images, mean logits and shares are of different classes")
        return super().prepare(server_round, weights, upload)

    def images_of(self, upload: Upload) -> SyntheticImages:
        """Return S_k."""
        return self.full_size(upload.payload_as(Bundle).part(IMAGES, SyntheticImages))

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Average V_k and R_k over the sites that hold a class, then train from w_r."""
        received = list(uploads)
        sent = [upload.payload_as(Bundle) for upload in received]
        self._others = _average([bundle.part(LOGITS, Tensors) for bundle in sent])
        self._shares = _average([bundle.part(SHARES, Tensors) for bundle in sent])
        return super().update(server_round, weights, received)

    def objective(self, each: Tensor) -> Objective:
        """Return cross-entropy + lambda_glob L_LGKM, from one forward pass."""
        own, task, classes = self._own, self.run.task, len(self.run.info.classes)
        if not own.global_strength or self._shares is None:
            return super().objective(each)
        shares = torch.full((classes, classes), torch.nan, device=each.device)
        shares[self._shares[LABELS].to(each.device)] = self._shares[VECTORS].to(each.device)

        def objective(model: nn.Module, x: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
            logits = model(x)
            gap = knowledge_gap(logits, targets, shares, own.temperature)
            return task.loss(logits, targets, each[positions]) + own.global_strength * gap

        return objective

    def state_dict(self) -> State:
        """Return FedDM's, and V."""
        kept = super().state_dict()
        if self._others is None:
            return kept
        return {**kept, _OTHERS: [self._others[VECTORS], self._others[LABELS]]}

    def load_state_dict(self, state: State) -> None:
        """Restore the state."""
        super().load_state_dict({name: kept for name, kept in state.items() if name != _OTHERS})
        if _OTHERS in state:
            vectors, labels = state[_OTHERS]
            self._others = latent_means(vectors, labels, self.run.config.wire.latents)


def _average(each: Sequence[Tensors]) -> Tensors:
    """Return the mean vector of each class over those that hold it, every one counting as one."""
    vectors = torch.cat([means[VECTORS] for means in each])
    labels, owner, counts = torch.unique(
        torch.cat([means[LABELS] for means in each]), return_inverse=True, return_counts=True
    )
    sums = vectors.new_zeros(len(labels), vectors.shape[1]).index_add_(0, owner, vectors)
    return latent_means(sums / counts[:, None], labels, each[0].codec)


def _longest_row(_: Weights, __: Upload, sent: Tensors) -> CandidateModel:
    """Hold the longest mean of a class against the others', however many classes each has."""
    rows = sent[VECTORS]
    longest = rows[rows.norm(dim=1).argmax()] if len(rows) else rows.new_zeros(rows.shape[1])
    zeros = Weights({LOGITS: torch.zeros_like(longest)})
    return CandidateModel(Weights({LOGITS: longest}), zeros, part=LOGITS)
