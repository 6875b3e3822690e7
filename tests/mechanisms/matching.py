"""FedDM's two mechanisms under audit: many classes stand for many releases, since all are released at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from common.draws.private_draws import KeyStream
from common.draws.seeding import generator
from common.models import Classifier, build
from common.privacy.events import Adjacency, Event
from synth.distribution_matching import features
from synth.private_matching import Mechanism, PoissonClasses
from synth.private_release import Contributions, Gaussian, noisy_gradients, noisy_means
from tests.mechanisms.gradients import system_uniform

_SHAPE, _CLASSES = (1, 4, 4), 2
#: pairs of classes in a call, of which one has the canary where there is one
_PAIRS = 500


@dataclass(frozen=True)
class MatchingReleases:
    """One iteration of private matching, of classes with one dark image each, and with a canary or not.

    The dark image's features are next to nothing, the canary's are far beyond the clip: no other images could make the
    canary easier to see.

    Parameters
    ----------
    mechanism : str
        ``gradient`` or ``feature``.
    noise_multiplier : float
        sigma.
    sample_rate : float
        With which an image is drawn.
    clip : float
        C.
    """

    mechanism: Mechanism
    noise_multiplier: float
    sample_rate: float = 1.0
    clip: float = 1.0

    claimed: Adjacency = "add-remove"

    @cached_property
    def gaussian(self) -> Gaussian:
        """The clip and the noise."""
        return Gaussian(self.noise_multiplier, self.clip, KeyStream().normal)

    @property
    def event(self) -> Event:
        """One step of samples."""
        return Event(f"feddm-{self.mechanism}", self.noise_multiplier, self.sample_rate)

    def expected(self, *, canary: bool) -> Tensor:
        """Return the release without noise of all images, scaled as that of a sample is."""
        kinds, labels = self._kinds(1, canary=canary)
        still = Gaussian(0.0, self.clip, self.gaussian.normal)
        whole = Contributions(self._rows[kinds], labels, 2)
        return self.sample_rate * self.released(whole, self.plan(labels), still)[0]

    def drawn(self, *, canary: bool) -> tuple[Tensor, Tensor]:
        """Return the releases of every other class, and those of the classes beside them, without a canary."""
        kinds, labels = self._kinds(_PAIRS, canary=canary)
        plan = self.plan(labels)
        at, ranks = plan.draw(self.sample)
        sample = Contributions(self._rows[kinds[at]], ranks, 2 * _PAIRS)
        rows = self.released(sample, plan, self.gaussian)
        return rows[0::2], rows[1::2]

    def sample(self, rates: Tensor) -> Tensor:
        """Draw a Poisson sample."""
        return (system_uniform(len(rates)) < rates).nonzero().flatten()

    def released(self, real: Contributions, plan: PoissonClasses, gaussian: Gaussian) -> Tensor:
        """Return what the mechanism lets out, a row a class."""
        if self.mechanism == "feature":
            return noisy_means(real, plan.expected, gaussian)
        images = self._synthetic.repeat(real.classes, 1, 1, 1)
        with torch.enable_grad():
            found = noisy_gradients(self._embed, real, images, plan.expected, gaussian)
        return found.view(real.classes, -1)

    def plan(self, labels: Tensor) -> PoissonClasses:
        """Return the plan of a run in which every class is said to have 1 / rate images, of which one is expected."""
        classes = int(labels[-1]) + 1
        return PoissonClasses.plan(labels, 1, torch.full((classes,), 1 / self.sample_rate))

    def data(self, pairs: int, *, canary: bool) -> tuple[Tensor, Tensor]:
        """Return images and labels, class by class: a dark one each, and in every other class the canary if any."""
        kinds, labels = self._kinds(pairs, canary=canary)
        return self._pictures[kinds], labels

    def _kinds(self, pairs: int, *, canary: bool) -> tuple[Tensor, Tensor]:
        """Return for each image whether it is the canary, 1, or dark, 0, and its label."""
        labels = torch.arange(2 * pairs)
        kinds = torch.zeros_like(labels)
        if canary:
            kinds = torch.cat([kinds, torch.ones(pairs, dtype=kinds.dtype)])
            labels = torch.cat([labels, torch.arange(0, 2 * pairs, 2)])
            order = labels.argsort(stable=True)
            kinds, labels = kinds[order], labels[order]
        return kinds, labels

    def _embed(self, images: Tensor) -> Tensor:
        with torch.set_grad_enabled(images.requires_grad):
            return features(self.model, images)

    @cached_property
    def model(self) -> Classifier:
        """A network whose embedding grows with the image, so that the canary is far beyond the clip."""
        model = build(
            "convnet", _SHAPE, _CLASSES, depth=1, width=4, norm="none",
            generator=generator(0, "audit-model"),
        )  # fmt: skip
        return model.eval().requires_grad_(False)

    @cached_property
    def _pictures(self) -> Tensor:
        canary = 1e4 * torch.randn(1, *_SHAPE, generator=generator(0, "audit-canary"))
        return torch.cat([torch.zeros_like(canary), canary])

    @cached_property
    def _rows(self) -> Tensor:
        return self._embed(self._pictures)

    @cached_property
    def _synthetic(self) -> Tensor:
        return torch.randn(1, *_SHAPE, generator=generator(0, "audit-synthetic"))
