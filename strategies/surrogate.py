"""The server that learns from small image sets: FedDM's, and REAL's with real images in their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from common.learning.run import Run
from common.learning.training import Local, Objective, weighted
from common.samples.inputs import Samples
from common.settings.surrogate import SurrogateServerSettings
from common.sites import Site
from common.specs.images import images_spec
from common.wire.codec import Payload, Spec
from common.wire.synthetic_images import SyntheticImages
from common.wire.weights import Weights
from strategies.base import LEARNED, Instruction, State, Strategy
from strategies.bounds import Bound, images
from strategies.exchange.replies import Upload
from strategies.global_models import GlobalModels
from strategies.image_training import learned_from


class SurrogateServer(Strategy):
    """Train the global model on the union of the received sets, as ``image_training`` says.

    Subclasses say which phase their devices run, and may say what else is sent either way (``sends``, ``expects``,
    ``images_of``) and what is minimised (``objective``). FedDM, Algorithm 1, server part: SGD with eta_s on
    sum_k f^_{r,k} (Eq. 5), and after every step a projection into B_rho(w_r) (Eq. 3), image_training's ball.
    """

    phase: str

    soft = False
    """Whether labels are shares of the classes, float32 [n, classes], instead of classes."""

    @property
    def fewest(self) -> int:
        """The least number of images of a class that a site sends any of."""
        return 1

    @property
    def half(self) -> bool:
        """Whether sites send images half as high and wide as the run's."""
        return False

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        self.settings = settings = run.settings(SurrogateServerSettings)
        self._expects = self.expects()
        self._models = GlobalModels(run, settings)
        self.needs_class_counts = settings.image_weighting == "counts"
        self._last: dict[str, SyntheticImages] = {}
        self._kept: list[tuple[Tensor, Tensor, Tensor]] = []

    def instructions(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Ask every site for what ``expects`` says, and give it what ``sends`` does."""
        instruction = Instruction(self.phase, self.sends(weights), self._expects)
        return {site.name: instruction for site in sites}

    def sends(self, weights: Weights) -> Payload:
        """Return what the sites are sent in a round: w_r."""
        return weights

    def expects(self) -> Spec:
        """Return the form of a reply: at most ipc images a class. Asked once, when the server is made."""
        return images_spec(
            self.run, self.settings.ipc, soft=self.soft, fewest=self.fewest, half=self.half
        )

    def bounds(self) -> Mapping[str, Bound]:
        """Believe images in range: a single one of absurd values decides what the server learns."""
        stays = "the rounds that `keep` holds, and their checkpoint"
        return {"": images(self.run, "the server's training", stays)}

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Train from w_r on this round's union, and on that of the last ``keep`` - 1 rounds."""
        received = list(uploads)
        self._last = {u.site.name: self.images_of(u) for u in received}
        self._kept.append(self._union(received))
        if self.settings.keep:
            del self._kept[: -self.settings.keep]
        images, labels, each = (torch.cat(parts) for parts in zip(*self._kept, strict=True))
        samples = Samples.of(images.to(self.run.device), labels.to(self.run.device))
        objective = self.objective(each.to(self.run.device))
        self._models.train(server_round, samples, Local(objective=objective))
        return learned_from(self.run, server_round, weights, samples, objective)

    def images_of(self, upload: Upload) -> SyntheticImages:
        """Return the images that a site sent."""
        return upload.payload_as(SyntheticImages)

    def objective(self, each: Tensor) -> Objective:
        """Return what is minimised, where image i counts ``each[i]`` times: its mean cross-entropy."""
        return weighted(self.run.task, each)

    def _union(self, uploads: Sequence[Upload]) -> tuple[Tensor, Tensor, Tensor]:
        """Return images, labels and each image's weight, scaled to a mean of one over the round."""
        sets = [self.images_of(u) for u in uploads]
        images = torch.cat([s.images for s in sets])
        labels = torch.cat([s.labels for s in sets])
        if self.settings.image_weighting == "uniform":
            return images, labels, torch.ones(len(labels))
        each = torch.cat(
            [self._by_counts(u.site, s.labels) for u, s in zip(uploads, sets, strict=True)]
        )
        return images, labels, each / each.mean().clamp_min(torch.finfo(each.dtype).tiny)

    def _by_counts(self, site: Site, labels: Tensor) -> Tensor:
        """Return n_{k,c} over the images of class c sent, for each of these: a class counts what it is at the site.

        An image with a soft label is of each class by its probability.
        """
        counts = torch.tensor(site.class_counts, dtype=torch.float32)
        if labels.is_floating_point():
            # In double: the count over a share as small as float32 has any is no float32 any more.
            shares = labels.double()
            sent = shares.sum(0)
            return (shares @ torch.where(sent > 0, counts.double() / sent, 0.0)).float()
        held = torch.bincount(labels, minlength=len(counts))
        return counts[labels] / held[labels]

    def pictures(self) -> Mapping[str, SyntheticImages]:
        """Return the last round's sets by site."""
        return self._last

    def notes(self) -> Mapping[str, Any]:
        """Name the classes of which nobody sent an image in this round, where there are such."""
        if not self._last:
            return {}
        each = (s.labels for s in self._last.values())
        sent = {c for ls in each for c in (ls.argmax(1) if ls.is_floating_point() else ls).tolist()}
        names = [name for one, name in enumerate(self.run.info.classes) if one not in sent]
        return {"not_sent": names} if names else {}

    def learned(self, arrays: ArrayRecord) -> Mapping[str, ArrayRecord]:
        """Return the first of the global models; the model that travels where there are none."""
        return self._models.learned(arrays)

    def beside(self, arrays: ArrayRecord) -> Mapping[str, ArrayRecord]:
        """Return the other global models, and then the model that travels."""
        return self._models.beside(arrays)

    def state_dict(self) -> State:
        """Return the kept rounds' sets, which the next round trains on, none with ``keep`` = 1; and global models."""
        older = [] if self.settings.keep == 1 else self._kept
        kept = {"kept": [list(parts) for parts in older]}
        models = self._models.state_dict()
        return {**kept, LEARNED: models} if models else kept

    def load_state_dict(self, state: State) -> None:
        """Take them back."""
        self._models.load_state_dict(state.get(LEARNED, {}))
        kept: list[list[Any]] = list(state["kept"])
        self._kept = [(images, labels, each) for images, labels, each in kept]
