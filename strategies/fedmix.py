"""FedMix on the server (Yoon et al., 2021, Algorithm 1): FedAvg, and the sites' means handed to all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from common.learning.run import Run
from common.sites import Site, site_order
from common.specs.averaging import INTRODUCE, MEANS, TRAIN, WEIGHTS, reply_spec
from common.specs.images import sent_images
from common.wire.bundle import Bundle
from common.wire.images import SyntheticImages
from common.wire.weights import Weights
from strategies.base import Instruction, State
from strategies.exchange.instructions import OneTimePayloads
from strategies.exchange.replies import Upload
from strategies.exchange.rules import Rule, image_rule, model_rule
from strategies.fedavg import FedAvg

_ASKED, _HELD, _IMAGES, _LABELS = "asked", "held", "images", "labels"


class FedMix(FedAvg):
    """A site sends its means with its first weights; from the next round on all that have come are with every site.

    So no round is spent on them alone. In the first there is nothing to mix with, and it is FedAvg's.
    """

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        self._expects = reply_spec(run)
        self._means: dict[str, SyntheticImages] = {}
        self._asked: set[str] = set()
        self._parcels = OneTimePayloads()

    def instructions(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Send the weights, and the means to those that do not have them all."""
        alone = both = Bundle({WEIGHTS: weights})
        if every := list(self._means.values()):
            images = torch.cat([m.images for m in every])
            labels = torch.cat([m.labels for m in every])
            both = Bundle({WEIGHTS: weights, MEANS: sent_images(self.run, images, labels)})
        plan = {}
        for site in sites:
            owed = bool(self._means) and self._parcels.pending(site.name, len(self._means))
            phase = TRAIN if site.name in self._asked else INTRODUCE
            plan[site.name] = Instruction(phase, both if owed else alone, self._expects)
        return plan

    def validation_rules(self) -> Mapping[str, Rule]:
        """Accept a model near the others' length, and means within the range of the images."""
        stays = "the run's checkpoints, and the memory of every site"
        return {
            WEIGHTS: model_rule(),
            MEANS: image_rule(self.run, "every site's training", stays, means=True),
        }

    def model_of(self, upload: Upload) -> Weights:
        """Return w_k."""
        return upload.payload_as(Bundle).part(WEIGHTS, Weights)

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Average the weights as they come, and keep the means."""
        self._sent: dict[str, SyntheticImages] = {}
        mean = super().update(server_round, weights, uploads)
        self._parcels.confirm(self.outcome)
        self._asked |= self.outcome.accepted.keys()
        room = self.members.counted_on - len(self._means)  # what the sites make room for
        new = sorted(self._sent.keys() - self._means.keys(), key=site_order)[: max(0, room)]
        self._means |= {site: self._sent[site] for site in new}
        return mean

    def take(self, upload: Upload) -> None:
        """Note the means that came with the weights."""
        if MEANS in upload.payload_as(Bundle).parts:
            self._sent[upload.site.name] = upload.payload_as(Bundle).part(MEANS, SyntheticImages)

    def pictures(self) -> Mapping[str, SyntheticImages]:
        """Return each site's means, with the likeliest class of each."""
        return {
            site: SyntheticImages(m.images, m.labels.argmax(1)) for site, m in self._means.items()
        }

    def state_dict(self) -> State:
        """Return the means, and which sites have sent theirs and have them all."""
        return {
            _ASKED: sorted(self._asked),
            _HELD: dict(self._parcels.held),
            _IMAGES: {site: m.images for site, m in self._means.items()},
            _LABELS: {site: m.labels for site, m in self._means.items()},
        }

    def load_state_dict(self, state: State) -> None:
        """Restore the state."""
        self._asked, self._parcels = set(state[_ASKED]), OneTimePayloads(state[_HELD])
        images, labels = state[_IMAGES], state[_LABELS]
        self._means = {site: SyntheticImages(images[site], labels[site]) for site in images}
