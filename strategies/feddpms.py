"""FedDPMS on the server (Algorithms 1 to 3): averages models, matches sites, hands on their noisy latent means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from common.errors import PayloadError
from common.learning.run import Run
from common.models.encoder import Decoder
from common.privacy.accounting import epsilon, latent_sensitivity
from common.privacy.events import Event
from common.sites import Site, site_order
from common.specs.feddpms import (
    DECODER,
    HAND_OVER,
    MEANS,
    MECHANISM,
    NOISE_MULTIPLIER,
    SCARCE,
    SECONDARY,
    SEEDED,
    SHARE,
    SYNTHETIC,
    WEIGHTS,
    handed_over_spec,
    initial_vae,
    most_synthetic,
    reply_spec,
    settings_of,
    start_decoder,
)
from common.specs.updates import MEMORY_LOST
from common.wire.bundle import Bundle
from common.wire.images import SyntheticImages
from common.wire.tensors import CLASS_LIST, LABELS, VECTORS, Tensors, latent_means
from common.wire.weights import Weights
from strategies.averaging import Mean, RobustMean
from strategies.base import Instruction, State
from strategies.exchange.instructions import OneTimePayloads
from strategies.exchange.replies import Outcome, Upload
from strategies.exchange.rules import CandidateModel, Rule, model_rule, vector_rule
from strategies.fedvae import FedVAE
from synth.latent_sharing import best_match

_HELD = "decoder-held"


class FedDPMS(FedVAE):
    """Two stages: VAEs, whose decoders are averaged once; then classifiers, on images drawn of other sites' means.

    All that a round's matching needs has come with the replies of the rounds before: no exchange is for it alone.
    """

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        self.settings = settings_of(run)
        self.exchange = LatentExchange()
        self._replies = {shares: reply_spec(run, shares=shares) for shares in (False, True)}
        self._handed_over = handed_over_spec(run)
        self._latent = initial_vae(run).latent
        self._decoder: Weights | None = None
        self._parcels = OneTimePayloads()
        self._matches: dict[str, str] = {}
        self._decoders: Mean | RobustMean | None = None
        self._shared: dict[str, Tensors] = {}
        self._scarce: dict[str, tuple[int, ...]] = {}
        self._sharers: dict[str, Mapping[str, float]] = {}

    # ---- what a site is to do -------------------------------------------------------------------------

    def instructions(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Send what the stage takes: in the second the decoder where it is needed, and a match's means."""
        if server_round == self.last_preliminary:
            what = Instruction(HAND_OVER, weights, self._handed_over)
            return {site.name: what for site in sites}
        if self.is_preliminary(server_round):
            return super().instructions(server_round, weights, sites)
        shared = weights.only(self.shared)
        return {site.name: self._second_stage(site.name, shared) for site in sites}

    def _second_stage(self, site: str, weights: Weights) -> Instruction:
        helper, shares = self.exchange.match(site), self.exchange.ask(site)
        parts: dict[str, Weights | Tensors] = {WEIGHTS: weights}
        decodes = helper is not None or (shares and self.settings.mechanism == "paper")
        if decodes and self._decoder is not None and self._parcels.pending(site, 1):
            parts[DECODER] = self._decoder
        if helper is not None:
            overall = self.settings.mechanism == "overall-mean"
            given = self.exchange.overall if overall else self.exchange.shared.__getitem__
            parts[MEANS] = given(helper)
        return Instruction(SHARE if shares else SECONDARY, Bundle(parts), self._replies[shares])

    # ---- what comes back ------------------------------------------------------------------------------

    def validation_rules(self) -> Mapping[str, Rule]:
        """Accept models and decoders near the others' length, and latents as long as clip and noise allow."""
        d, settings = self._latent, self.settings
        code = min(settings.clip or math.inf, math.sqrt(d))  # each number of a code is in [0, 1]
        return {
            "": model_rule(),
            WEIGHTS: model_rule(),
            DECODER: Rule(
                "`federation.max_update`, relative to the round's other decoders",
                "the average of decoders, and with it every site that is helped",
                "the run's checkpoints, and the memory of the helped sites",
                candidate=lambda _, __, sent: CandidateModel(
                    sent, self._first_decoder, part=DECODER
                ),
            ),
            SCARCE: Rule("classes that there are", "the matching", "the run's checkpoints"),
            MEANS: vector_rule(
                VECTORS,
                code + 10 * settings.sigma * math.sqrt(d),
                "clip + 10 sigma sqrt(d)",
                "the site that is matched with it",
                "the run's checkpoints",
            ),
        }

    @cached_property
    def _first_decoder(self) -> Weights:
        return Weights.of(start_decoder(self.run))

    def prepare(self, server_round: int, weights: Weights, upload: Upload) -> Upload:
        """Refuse a number of synthetic images that what the site was sent cannot give."""
        message, most = upload.metrics.get(SYNTHETIC, 0.0), most_synthetic(self.run)
        if not (0 <= message <= most and message == int(message)):
            raise PayloadError(
                f"its {SYNTHETIC} is {message:g}, and it was sent means for at most {most} images"
            )
        self._require_noise(upload)
        return upload

    def _require_noise(self, upload: Upload) -> None:
        """Refuse a noise multiplier that no class of the site can have: the record's epsilon is computed from it."""
        payload, least = upload.payload, self._multiplier(1)
        if not isinstance(payload, Bundle) or MEANS not in payload.parts:
            return
        noisy = len(payload.part(MEANS, Tensors)[LABELS]) or NOISE_MULTIPLIER in upload.metrics
        message = upload.metrics.get(NOISE_MULTIPLIER, math.nan if noisy else least)
        most = self._multiplier(max(1, upload.examples))
        if not least * (1 - 1e-6) <= message <= most * (1 + 1e-6):
            raise PayloadError(
                f"its {NOISE_MULTIPLIER} is {message:g}, and with {upload.examples} images it can be "
                f"{least:g} to {most:g}"
            )

    def _multiplier(self, images: int) -> float:
        """Return sigma over what one of so many images of a class can change."""
        clip = self.settings.clip
        return self.settings.sigma / latent_sensitivity(self._latent, images, clip)

    def model_of(self, upload: Upload) -> Weights:
        """Return w_k."""
        payload = upload.payload
        return (
            payload.part(WEIGHTS, Weights)
            if isinstance(payload, Bundle)
            else super().model_of(upload)
        )

    def share(self, upload: Upload) -> int:
        """Return |Dbar_i|, the number of images and synthetic ones (Algorithm 2, line 24), or what else is set."""
        if self.settings.weighting == "augmented":
            return upload.examples + int(upload.metrics.get(SYNTHETIC, 0))
        return super().share(upload)

    def take(self, upload: Upload) -> None:
        """Keep what came with the model."""
        if not isinstance(upload.payload, Bundle):
            return
        parts, name = upload.payload.parts, upload.site.name
        if DECODER in parts:
            decoder = upload.payload.part(DECODER, Weights)
            self._decoders = self._decoders or self.average(decoder)
            self._decoders.add(decoder, self.share(upload))
        if MEANS in parts:
            self._sharers[name] = upload.metrics
            self._shared[name] = upload.payload.part(MEANS, Tensors)
        if SCARCE in parts:
            self._scarce[name] = tuple(upload.payload.part(SCARCE, Tensors)[CLASS_LIST].tolist())

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Average the models, in the last preliminary round the decoders too, and settle who has what."""
        self._decoders, self._shared, self._scarce, self._sharers = None, {}, {}, {}
        averaged = super().update(server_round, weights, uploads)
        if self._decoders is not None:
            self._decoder = self._decoders.result()
        self._matches = self.exchange.confirm(self.outcome, self._shared, self._scarce)
        self._parcels.confirm(self.outcome)
        return averaged

    def notes(self) -> Mapping[str, Any]:
        """Return who helped whom with which classes, and how private the means are that were shared this round.

        In a private run the means are among all that a site was charged, and have no epsilon of their own.
        """
        matches = {
            site: {"helper": helper, "classes": self.exchange.classes_of(helper)}
            for site, helper in self._matches.items()
        }
        privacy = {
            site: self._privacy_of(site, figures)
            for site, figures in self._sharers.items()
            if NOISE_MULTIPLIER in figures and not self.run.config.privacy.active
        }
        return {k: v for k, v in (("matches", matches), ("privacy", privacy)) if v}

    def _privacy_of(self, site: str, figures: Mapping[str, float]) -> dict[str, Any]:
        """Return the epsilon of all that ``site`` was asked to share, and what it rests on.

        A site that was asked twice, since its first reply was lost, has released its means twice.
        """
        multiplier = figures[NOISE_MULTIPLIER]
        each = self.settings.copies if self.settings.mechanism == "paper" else 1
        releases, delta = each * self.exchange.asked[site], self.run.config.privacy.delta
        shared = Event(MECHANISM, multiplier, steps=releases, adjacency="replace-one")
        spent = epsilon([shared], delta, "replace-one").value
        return {
            "epsilon": spent if math.isfinite(spent) else None,
            "delta": delta,
            "noise-multiplier": multiplier,
            "releases": releases,
            "seeded": SEEDED in figures,
        }

    def pictures(self) -> Mapping[str, SyntheticImages]:
        """Return the images decoded from the means that the sites shared this round."""
        if self._decoder is None:
            return {}
        decoder = start_decoder(self.run)
        self._decoder.load_into(decoder)
        shared = {site: means for site, means in self._shared.items() if len(means[LABELS])}
        return {site: self._decoded(decoder, means) for site, means in shared.items()}

    @torch.no_grad()
    def _decoded(self, decoder: Decoder, means: Tensors) -> SyntheticImages:
        images = decoder.eval()(means[VECTORS].to(self.run.device)).cpu()
        return SyntheticImages(images, means[LABELS])

    # ---- what is kept ---------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Return the stage, the decoder, and who has what."""
        decoder = {} if self._decoder is None else {DECODER: dict(self._decoder.tensors)}
        kept = {"exchange": self.exchange.state_dict(), _HELD: dict(self._parcels.held)}
        return {**super().state_dict(), **decoder, **kept}

    def load_state_dict(self, state: State) -> None:
        """Restore the state."""
        super().load_state_dict(state)
        self._decoder = Weights(dict(state[DECODER])) if DECODER in state else None
        self.exchange.load_state_dict(state["exchange"])
        self._parcels = OneTimePayloads(state[_HELD])


# ---- latent exchange -----------------------------------------------------------------------------
# FedDPMS' bookkeeping (Algorithm 2): who has shared, who has been helped by whom, and who lacks what.


class LatentExchange:
    """Each site helps once and is helped once, by the replies that were taken.

    Attributes
    ----------
    shared : dict of str to Tensors
        Latent means, Z_j of the sites that have shared (A); its labels are C_j.
    helped : dict of str to str
        Who helped each site that has been helped (B).
    scarce : dict of str to tuple of int
        H_i of the sites that have reported it and are not helped yet.
    asked : dict of str to int
        How often each site was asked to share. A reply that is lost has left the site all the same.
    """

    def __init__(self) -> None:
        self.shared: dict[str, Tensors] = {}
        self.helped: dict[str, str] = {}
        self.scarce: dict[str, tuple[int, ...]] = {}
        self.asked: dict[str, int] = {}
        self._out: dict[str, str] = {}

    def match(self, site: str) -> str | None:
        """Return which site helps ``site`` this round, and note it; None if there is no such site."""
        if site in self.helped or site not in self.scarce:
            return None
        abundant = {j: self.classes_of(j) for j in sorted(self.shared, key=site_order)}
        found = best_match(site, self.scarce[site], abundant)
        if found is not None:
            self._out[site] = found
        return found

    def ask(self, site: str) -> bool:
        """Return whether ``site`` is to share this round, and count it."""
        if site in self.shared:
            return False
        self.asked[site] = self.asked.get(site, 0) + 1
        return True

    def classes_of(self, site: str) -> list[int]:
        """Return C_j, as far as the site has sent a mean of them."""
        return sorted(set(self.shared[site][LABELS].tolist()))

    def overall(self, site: str) -> Tensors:
        """Return ``site``'s shared means with each vector replaced by the mean over all sites' vectors."""
        shared = self.shared[site]
        everything = torch.cat([means[VECTORS] for means in self.shared.values()])
        return latent_means(
            everything.mean(0).repeat(len(shared[LABELS]), 1), shared[LABELS], shared.codec
        )

    def confirm(
        self,
        outcome: Outcome,
        shared: Mapping[str, Tensors],
        scarce: Mapping[str, tuple[int, ...]],
    ) -> dict[str, str]:
        """Take note of a round's accepted replies and return the matches that came about: helped site -> helper.

        Parameters
        ----------
        shared, scarce : mapping
            What came with the models, by site.
        """
        accepted = outcome.accepted
        self.shared |= {site: means for site, means in shared.items() if site in accepted}
        for site in (site for site in accepted if MEMORY_LOST in accepted[site]):
            self.helped.pop(site, None)  # what it had been given is gone
        came_about = {i: j for i, j in self._out.items() if i in accepted}
        self.helped |= came_about
        self.scarce |= {site: classes for site, classes in scarce.items() if site in accepted}
        self.scarce = {i: classes for i, classes in self.scarce.items() if i not in self.helped}
        self._out.clear()
        return came_about

    def state_dict(self) -> State:
        """Return the complete state for a checkpoint."""
        return {
            "vectors": {site: means[VECTORS] for site, means in self.shared.items()},
            "labels": {site: means[LABELS] for site, means in self.shared.items()},
            "helped": dict(self.helped),
            "scarce": {site: list(classes) for site, classes in self.scarce.items()},
            "asked": dict(self.asked),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore the state."""
        vectors, labels = state["vectors"], state["labels"]
        self.shared = {site: latent_means(vectors[site], labels[site]) for site in vectors}
        self.helped, self.asked = dict(state["helped"]), dict(state["asked"])
        self.scarce = {site: tuple(classes) for site, classes in state["scarce"].items()}
