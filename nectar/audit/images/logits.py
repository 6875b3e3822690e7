"""Attacks on logits: a model that answers as a site's does, and how small a loss it has on each candidate.

The attacker has what the server has: the public images, and what each site answered to them in the last round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from common.learning.run import Run
from common.learning.training import plain
from common.sites import ALL_SITES, site_order
from common.specs.fedmd import public_samples
from common.wire.weights import Weights
from nectar.audit.images.examining import MOST_SITES, Evidence
from server_app.checkpoint import Checkpoint
from strategies.fedmd import SITES
from strategies.public_images import public_images
from strategies.surrogate import learned_from

LOGITS_NOTE = "No site's model is in the record: each was copied by training one on its answers to the public images."
NO_LOGITS_NOTE = "The record has the answer of all sites alone: with distil.keep=sites each site's is examined too."

_ATTACK = "loss, copied model"

_ROUNDS = 5
"""How often the copy is trained by ``image_training``, each time from where it was."""


def scores_of_logits(
    run: Run, checkpoint: Checkpoint, evidence: Evidence
) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
    """Yield minus each candidate's loss, float64 [n]: under the copies of the first sites, and the least of these."""
    kept: Mapping[str, Tensor] = checkpoint.strategy[SITES]
    if not kept:
        return
    images, scores = public_images(run), list[Tensor]()
    for site in sorted(kept, key=site_order)[:MOST_SITES]:
        samples = public_samples(run, images, kept[site].softmax(1))
        copied = Weights(dict(checkpoint.weights))
        for number in range(1, _ROUNDS + 1):
            copied = learned_from(run, number, copied, samples, plain(run.task))
        scores.append(-_losses(run, copied, evidence))
        yield site, {_ATTACK: scores[-1]}
    yield ALL_SITES, {_ATTACK: torch.stack(scores).amax(0)}


@torch.no_grad()
def _losses(run: Run, weights: Weights, evidence: Evidence) -> Tensor:
    model, candidates = run.model_with(weights).eval(), evidence.candidates
    places = torch.split(torch.arange(len(candidates)), run.config.evaluation.batch)
    outputs = torch.cat([model(candidates.inputs(part).to(run.device)).cpu() for part in places])
    return F.cross_entropy(outputs.double(), candidates.labels.cpu(), reduction="none")
