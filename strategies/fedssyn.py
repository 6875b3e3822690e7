"""Fedssyn on the server (Algorithm 1): gathers the sites' images, shuffles them, and lets another method learn."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from logging import getLogger
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from torch import Tensor

from common.draws.seeding import generator
from common.errors import FederationError, PayloadError
from common.learning.run import Run
from common.learning.training import mean_gradient, weighted
from common.samples.inputs import Samples
from common.sites import SUPERLINK, Site, engine_of
from common.specs.fedssyn import (
    DONE,
    IMAGES,
    INNER,
    MIXED,
    MIXED_NOISE,
    OWN,
    OWN_NOISE,
    SHARE,
    WITHOUT_SHARE,
    Images,
    disclosed_by_source,
    replied_spec,
    settings_of,
)
from common.wire.bundle import Bundle
from common.wire.form import Payload
from common.wire.images import SyntheticImages
from common.wire.weights import Weights
from strategies.base import LEARNED, Instruction, State, Strategy
from strategies.central import Central
from strategies.exchange.exchange import nodes_online
from strategies.exchange.instructions import OneTimePayloads
from strategies.exchange.replies import Upload, reasons_in_words
from strategies.exchange.rules import Clipping, Rule
from strategies.image_sources import SOURCES, ImageSource
from strategies.shuffled_pool import ShuffledPool
from strategies.surrogate import learned_from
from synth.dissimilarity import distribution_shift, gradient_dissimilarity

_POOL, _HELD, _SOURCE, _READY, _VAIN, _DONE = "pool", "held", "source", "ready", "vain", "done"

#: images of a class and site that the record keeps and draws
_SHOWN = 10

#: the share of its generator's training by which a site counts as further: less than that counts as a request in vain
_STEP = 0.01

#: seconds between two looks at who is there
_LOOK = 1.0

logger = getLogger("flwr")


class Fedssyn(Strategy):
    """First a site makes images; then the inner method's instructions go out, once along with the site's share.

    A round in which images are made leaves the weights unchanged, except the last: there the server may learn from
    the images what the inner method begins with.
    """

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        self.settings = settings_of(run)
        _ = run.image_shape
        has_source = self.settings.made_by is not None
        self._source: ImageSource | None = (
            SOURCES[self.settings.source](self) if has_source else None
        )
        self.inner = self.strategy_of(self.settings.inner)
        self.contrast = self.inner.contrast  # type: ignore[misc]
        self.needs_class_counts = self.inner.needs_class_counts
        self._pool = ShuffledPool(run)
        self._parcels = OneTimePayloads()
        self._ready: set[str] = set()
        self._vain: dict[str, int] = {}
        self._done: dict[str, float] = {}
        self._began = time.monotonic()
        self._gathering = has_source
        self._new: dict[str, Images] = {}
        self._gaps, self._found = GradientGaps(), dict[str, float]()

    # ---- what is asked of each site -------------------------------------------------------------------

    def choose(self, server_round: int) -> list[Site]:
        """Return all sites whose images are missing while images are made, and the round's sites from then on."""
        if self._gathering:
            return [site for site in self.sites if site.name not in self._ready | self._given_up]
        return super().choose(server_round)

    @property
    def _given_up(self) -> set[str]:
        return {site for site, times in self._vain.items() if times >= self.settings.tries}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Compose the round's messages; where only sites that are away lack images, wait for one to come back."""
        self.ensure_roll_call(grid)
        if self._gathering and not self.choose(server_round):
            self._wait_for_somebody(grid)
        return super().configure_train(server_round, arrays, config, grid)

    def _wait_for_somebody(self, grid: Grid) -> None:
        at_first: set[int] | None = None
        logger.warning(
            "%d of %d sites have made images; the others are away and waited for, up to fedssyn.deadline=%g s",
            *(len(self._ready), self.members.counted_on, self.settings.deadline),
        )
        while not self._late:
            online = nodes_online(grid)
            at_first = online if at_first is None else at_first
            if online is not None and at_first is not None and not online <= at_first:
                return
            time.sleep(_LOOK)

    @property
    def _late(self) -> bool:
        return time.monotonic() - self._began > self.settings.deadline

    def instructions(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Ask for images, or give the inner method's instructions, each with the share that the site does not have.

        Raises
        ------
        FederationError
            If real images are to be shuffled as they are in a real federation.
        """
        if self._gathering and self._source is not None:
            self._require_no_originals()
            return self._source.requests(server_round, weights, sites)
        if self.settings.central:
            return {}
        plan = self.inner.instructions(server_round, weights, sites)
        return {site: self._with_share(site, what) for site, what in plan.items()}

    def _require_no_originals(self) -> None:
        disclosed = disclosed_by_source(self.run)
        if disclosed is not None and disclosed.unchanged and engine_of(self.sites) == SUPERLINK:
            raise FederationError(
                f"fedssyn.source={self.settings.source} gives real images away as they are, for study: no real "
                "federation does that; choose fedssyn.source=diffusion, or distilled with a start from noise"
            )

    def _with_share(self, site: str, what: Instruction) -> Instruction:
        parts: dict[str, Payload] = {INNER: what.payload}
        if self._pool.closed and self._parcels.pending(site, 1):
            parts[SHARE] = self._pool.share_of(site)
        return Instruction(what.phase, Bundle(parts), replied_spec(self.run, what.expects))

    # ---- what comes back ------------------------------------------------------------------------------

    def validation_rules(self) -> Mapping[str, Rule]:
        """Believe of images what their source does, and of the inner method's parts what it believes."""
        rules = self.inner.validation_rules()
        inner = {name: rule.applied_to(self._as_inner) for name, rule in rules.items()}
        figures = Rule("finite numbers", "figures of the round", "the record", codec="float32")
        return {
            **(self._source.validation_rules() if self._source is not None else {}),
            **inner,
            **{f"{INNER}/{name}".rstrip("/"): rule for name, rule in inner.items()},
            **({OWN: figures, MIXED: figures} if self.settings.diagnostics else {}),
        }

    def _as_inner(self, upload: Upload) -> Upload:
        payload = upload.payload
        if self.settings.diagnostics and isinstance(payload, Bundle):
            payload = payload.parts.get(INNER, payload)
        return replace(upload, payload=payload, examples=self._trained_on(upload))

    def prepare(self, server_round: int, weights: Weights, upload: Upload) -> Upload:
        """Let the inner method check its own part."""
        if not self._gathering:
            if self.settings.diagnostics and isinstance(upload.payload, Bundle):
                self._gaps.take(upload)
            judged = self.inner.prepare(server_round, weights, self._as_inner(upload))
            return replace(judged, examples=upload.examples)
        done = upload.metrics.get(DONE, 0.0)
        if not 0 <= done <= 1:
            raise PayloadError(f"its {DONE} is {done:g} where 0 to 1 was expected")
        if self._source is None or IMAGES not in upload.payload_as(Bundle).parts:
            return upload
        images = self._source.images_of(server_round, weights, upload)
        return replace(upload, payload=Bundle({IMAGES: images}))

    def _trained_on(self, upload: Upload) -> int:
        """Return how many images a pass of the site's had: its own, and unless ``scaled`` those of its share."""
        own = upload.examples
        if self.settings.scaled or WITHOUT_SHARE in upload.metrics or self._source is None:
            return own
        if not self.settings.shared:
            return own + self._source.asked_of(upload.site)
        if not self._pool.closed or self.settings.central:
            return own
        share = self._pool.share_of(upload.site.name)
        return own - self._source.given_of(own) + len(share.labels)

    def clipped(self, upload: Upload, clipping: Clipping) -> Upload:
        """Return the inner method's result."""
        return self.inner.clipped(upload, clipping)

    def resulting_model(self, weights: Weights, upload: Upload) -> Weights | None:
        """Return the inner method's answer; images lead to no model by themselves."""
        return None if self._gathering else self.inner.resulting_model(weights, upload)

    def initial_model(self, weights: Weights, site: Site) -> tuple[Weights, str]:
        """Return the inner method's answer."""
        return self.inner.initial_model(weights, site)

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Keep the images, and shuffle them when all are there; or let the inner method learn."""
        self._new = {}
        if not self._gathering:
            updated = self._advanced(server_round, weights, uploads)
            self._parcels.confirm(self.outcome)
            if self.settings.diagnostics:
                self._found = self._gaps.figures(self.outcome.accepted, self._at_the_pool(weights))
            return updated
        asked = {site.name for site in self.choose(server_round)}
        for upload in uploads:
            self._take(upload)
        for site in asked - self.outcome.accepted.keys():
            self._vain[site] = self._vain.get(site, 0) + 1
        settled = len(self._ready | self._given_up)
        if settled < max(self.members.counted_on, len(self.sites)) and not self._late:
            return weights
        started = self._started(server_round, weights)
        self._close()
        return started

    def _started(self, server_round: int, weights: Weights) -> Weights:
        """Return the inner method's initial weights: the round's, or those that the server learns from all images."""
        if not (self.settings.start_from_images and self._pool.sent):
            return weights
        images = self._samples(self._pool.union)
        alike = torch.ones(len(images), device=self.run.device)
        objective = weighted(self.run.task, alike)
        return learned_from(self.run, server_round, weights, images, objective)

    def _advanced(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        if not self.settings.central:
            return self.inner.advance(server_round, weights, uploads)
        assert isinstance(self.inner, Central)
        for _ in uploads:
            raise RuntimeError("no site was asked")
        return self.inner.trained_on(self._samples(self._pool.everything), server_round, weights)

    def _samples(self, images: Images) -> Samples:
        return Samples.of(images.examples, images.labels).to(self.run.device)

    def quorum(self, asked: int) -> int:
        """Require no replies while images are made: a site that sent none gets another request."""
        return 0 if self._gathering else super().quorum(asked)

    def _take(self, upload: Upload) -> None:
        sent, name = upload.payload_as(Bundle), upload.site.name
        if IMAGES in sent.parts:
            images: Any = sent.parts[IMAGES]
            self._pool.add(name, images)
            self._new[name] = images
        done = upload.metrics.get(DONE, 0.0)
        if done >= 1:
            self._ready.add(name)
            return
        further = done >= self._done.get(name, 0.0) + _STEP
        self._vain[name] = 0 if further else self._vain.get(name, 0) + 1
        self._done[name] = done if further else self._done.get(name, 0.0)
        logger.info("%s has done %.0f %% of its generator's training", name, 100 * done)

    def _close(self) -> None:
        """End the gathering: mix what there is; FederationError if no site has made any."""
        if not self._ready:
            why = reasons_in_words(self.outcome.rejected) or "they were away"
            raise FederationError(
                f"no site made images within fedssyn.deadline={self.settings.deadline:g} s and "
                f"fedssyn.tries={self.settings.tries} ({why})"
            )
        missing = [site.name for site in self.sites if site.name not in self._ready]
        if missing:
            logger.warning("the images of %s are missing from the shares", ", ".join(missing))
        if self._pool.sent:
            names = [site.name for site in self.sites]
            parts = max(self.members.counted_on, len(names))
            self._pool.close(names, parts, generator(self.run.config.seed, "shuffle"))
        self._gathering = False

    # ---- what is reported and kept --------------------------------------------------------------------

    def global_models(self, arrays: ArrayRecord) -> Mapping[str, ArrayRecord]:
        """Return the inner method's global models."""
        return self.inner.global_models(arrays)

    def extra_models(self, arrays: ArrayRecord) -> Mapping[str, ArrayRecord]:
        """Return the further models that the inner method has evaluated."""
        return self.inner.extra_models(arrays)

    @property
    def is_learning(self) -> bool:
        """Whether all images are made."""
        return not self._gathering

    @property
    def judged_from_memory(self) -> bool:
        """Whether the inner method's sites evaluate with what they remember."""
        return self.inner.judged_from_memory

    def notes(self) -> Mapping[str, Any]:
        """Return the inner method's, and under ``diagnostics`` the dissimilarity of the sites' gradients."""
        gradients = {"gradients": self._found} if self._found else {}
        return {**self.inner.notes(), **gradients}

    def _at_the_pool(self, weights: Weights) -> Tensor | None:
        """Return the mean gradient over all synthetic images."""
        if not self._pool.closed:
            return None
        model, images = self.run.model_with(weights).eval(), self._samples(self._pool.everything)
        mean_gradient(model, images, self.run.task, self.run.config.evaluation.batch, "float32")
        found = [p.grad for p in model.parameters() if p.grad is not None]
        return torch.cat([gradient.flatten() for gradient in found]).double().cpu()

    def pictures(self) -> Mapping[str, SyntheticImages]:
        """Return a few of each class of what every site sent in this round, or the inner method's pictures."""
        if self._new:
            return {site: _a_few(images) for site, images in self._new.items()}
        return {} if self._gathering else self.inner.pictures()

    def state_dict(self) -> State:
        """Return the images, who has made and got some, and what the inner method keeps."""
        inner = dict(self.inner.checkpoint())
        models = {LEARNED: inner.pop(LEARNED)} if LEARNED in inner else {}
        return {
            _POOL: self._pool.state_dict(),
            _HELD: dict(self._parcels.held),
            _SOURCE: {} if self._source is None else self._source.state_dict(),
            _READY: None if not self._gathering else sorted(self._ready),
            _VAIN: dict(self._vain),
            _DONE: dict(self._done),
            INNER: inner,
            **models,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore the state."""
        self._pool.load_state_dict(state[_POOL])
        self._parcels = OneTimePayloads(state[_HELD])
        if self._source is not None:
            self._source.load_state_dict(state[_SOURCE])
        self._gathering = state[_READY] is not None
        self._ready = set(state[_READY] or ())
        self._vain, self._done = dict(state[_VAIN]), dict(state[_DONE])
        models = {LEARNED: state[LEARNED]} if LEARNED in state else {}
        self.inner.restore({**state[INNER], **models})


def _a_few(images: Images) -> SyntheticImages:
    """Return the first images of each class as a model takes them."""
    member = images.labels[:, None] == torch.unique(images.labels)
    few = (member & (member.cumsum(0) <= _SHOWN)).any(1)
    return SyntheticImages(images.examples[few], images.labels[few])


# ---- gradient gaps -------------------------------------------------------------------------------
# The dissimilarity of the sites' gradients at a round's weights (Fedssyn, section 2), from what sites replied.


class GradientGaps:
    """Keeps one round's mean gradients and computes zeta^2, sigma^2 and delta^2."""

    def __init__(self) -> None:
        self._gradients: dict[str, dict[str, Tensor]] = {}

    def take(self, upload: Upload) -> None:
        """Keep what ``upload`` brought in addition to the inner method's payload."""
        sent = upload.payload_as(Bundle)
        sums = {n: sent.part(n, Weights).tensors for n in (OWN, MIXED) if n in sent.parts}
        self._gradients[upload.site.name] = {
            name: torch.cat([t.flatten().double() for t in gradient.values()])
            for name, gradient in sums.items()
        }

    def figures(
        self, accepted: Mapping[str, Mapping[str, float]], synthetic: Tensor | None
    ) -> dict[str, float]:
        """Return the figures of the sites whose replies were accepted.

        Parameters
        ----------
        synthetic : Tensor, optional
            The mean gradient over all synthetic images, float [d].
        """
        there = [site for site in self._gradients if site in accepted]
        own = [self._gradients[site][OWN] for site in there]
        mixed = [self._gradients[site][MIXED] for site in there if MIXED in self._gradients[site]]
        found: dict[str, float] = {}
        if own:
            found["zeta2"] = float(gradient_dissimilarity(torch.stack(own)))
            found["sigma2"] = _mean(accepted, there, OWN_NOISE)
            if synthetic is not None:
                found["delta2"] = float(distribution_shift(torch.stack(own), synthetic[None]))
        if mixed and len(mixed) == len(own):
            found["zeta2-mixed"] = float(gradient_dissimilarity(torch.stack(mixed)))
            found["sigma2-mixed"] = _mean(accepted, there, MIXED_NOISE)
        self._gradients = {}
        return found


def _mean(accepted: Mapping[str, Mapping[str, float]], sites: list[str], figure: str) -> float:
    values = [accepted[site][figure] for site in sites if figure in accepted[site]]
    return sum(values) / len(values) if values else float("nan")
