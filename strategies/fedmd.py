"""FedMD and DS-FL on the server (Li and Wang, 2019; Itahara et al., 2021): what all sites answer to public images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from common.errors import ConfigError
from common.learning.run import Run
from common.learning.training import plain
from common.sites import Site
from common.specs.logits import (
    ANSWER,
    IMAGES,
    LOGITS,
    PHASE,
    SHARES,
    answer_of_all,
    logits,
    logits_spec,
    public_samples,
)
from common.wire.bundle import Bundle
from common.wire.tensors import Tensors
from common.wire.weights import Weights
from strategies.base import Instruction, State, Strategy
from strategies.exchange.instructions import OneTimePayloads
from strategies.exchange.replies import Upload
from strategies.exchange.rules import CandidateModel, Clipping, Rule
from strategies.public_images import public_images
from strategies.surrogate import learned_from

#: under which names a checkpoint has which sites have the images, and their last logits
_HELD, SITES = "held", "sites"


class FedMD(Strategy):
    """Sends the images once and the last answer each round, makes the next one of the logits, and learns it itself.

    Raises
    ------
    ConfigError
        If there are no public images, or ``model.start`` names weights, which no site would have.
    """

    judged_from_memory = True  # each site its own model

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        if run.config.model.start:
            raise ConfigError(
                f"model.start={run.config.model.start} is read by the server alone, and under method=fedmd no weights "
                "travel: leave it out"
            )
        self._images = public_images(run)
        self._expects = logits_spec(run, len(self._images))
        self._answer: Tensor | None = None
        self._parcels = OneTimePayloads()
        self._last: dict[str, Tensor] = {}

    def instructions(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Ask every site for its logits; the images go to those that are not known to have them."""
        known = {} if self._answer is None else {ANSWER: Tensors({SHARES: self._answer})}
        again = Bundle(known)
        first = Bundle({IMAGES: Tensors({IMAGES: self._images}), **known})
        return {
            site.name: Instruction(
                PHASE, first if self._parcels.pending(site.name, 1) else again, self._expects
            )
            for site in sites
        }

    def validation_rules(self) -> Mapping[str, Rule]:
        """Accept logits within the clip of a site, and compare them with the round's others."""
        return {
            "": Rule(
                "what a site cuts its logits to; `federation.clip`, relative to the round's others",
                "the answer of all, and with it every site",
                "the run's checkpoints",
                candidate=lambda _, __, sent: CandidateModel(
                    Weights({LOGITS: sent[LOGITS]}),
                    Weights({LOGITS: torch.zeros_like(sent[LOGITS])}),
                    part=LOGITS,
                ),
            )
        }

    def clipped(self, upload: Upload, clipping: Clipping) -> Upload:
        """Return logits that are as long as is usual."""
        sent = upload.payload_as(Tensors)
        return replace(upload, payload=logits(clipping.share * sent[LOGITS], sent.codec))

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Make one answer of the logits, and train from w_r on it."""
        sent = {u.site.name: u.payload_as(Tensors)[LOGITS] for u in uploads}
        self._parcels.confirm(self.outcome)
        for site in self.outcome.rejected:  # one that lost the images can say so in no other way
            self._parcels.held.pop(site, None)
        self._last = sent if self.run.config.distil.keep == SITES else {}
        self._answer = answer_of_all(self.run, [*sent.values()])
        samples = public_samples(self.run, self._images, self._answer)
        return learned_from(self.run, server_round, weights, samples, plain(self.run.task))

    def state_dict(self) -> State:
        """Return the answer, and which sites have the images."""
        known = {} if self._answer is None else {ANSWER: self._answer}
        return {_HELD: dict(self._parcels.held), SITES: dict(self._last), **known}

    def load_state_dict(self, state: State) -> None:
        """Restore the state."""
        self._parcels = OneTimePayloads(state[_HELD])
        self._last, self._answer = dict(state[SITES]), state.get(ANSWER)
