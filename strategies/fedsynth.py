"""FedSynth on the server: replay each device's steps, average where they lead (Algorithm 1, server part)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from logging import getLogger

import torch
from torch import Tensor

from common.errors import PayloadError
from common.learning.run import Run
from common.settings.fedsynth import FedSynthSettings
from common.sites import Site
from common.specs.fedsynth import SyntheticBatches, as_batches, spec_of, step_loss
from common.wire.images import SyntheticImages
from common.wire.weights import Weights
from strategies.averaging import share_of
from strategies.base import Instruction, Strategy
from strategies.exchange.replies import Upload
from strategies.exchange.rules import Rule, image_rule, model_rule
from synth.synthetic_updates import client_update

logger = getLogger("flwr")


class FedSynth(Strategy):
    """w_{r+1} = w_r + sum_k p_k (w_k^syn - w_r), with w_k^syn = ClientUpdate(S_k; w_r) and p_k = 1 / |S_t|.

    With ``weighting=counts`` p_k = n_k / n. The replay starts from w_r as the devices read it. A set that
    leads to no finite weights is rejected when it is read.
    """

    contrast = "stretched"

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        self.settings = run.settings(FedSynthSettings)
        model = run.build_model()
        self.spec = spec_of(run, model)
        self._loss = step_loss(run, model)
        self._read: tuple[Weights, Weights] | None = None
        self._last: dict[str, SyntheticBatches] = {}
        self._idle: set[str] | None = None

    def instructions(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Send the weights w_r, expect m batches of b examples."""
        self._last = {}
        instruction = Instruction("synthesize", weights, self.spec)
        return {site.name: instruction for site in sites}

    def validation_rules(self) -> Mapping[str, Rule]:
        """Accept images in range, and compare the end of all batches' replay with the others'."""
        reaches = "the replay, whose end is compared with the round's others"
        if not self.run.info.has_values:
            return {"": model_rule(reaches, "the average")}
        return {"": image_rule(self.run, reaches, "the round's pictures in the record")}

    def prepare(self, server_round: int, weights: Weights, upload: Upload) -> Upload:
        """Replay the site's steps, so that a set that leads to no weights is rejected with the reason."""
        sent = upload.payload_as(SyntheticBatches)
        if not self.spec.targets:  # there are no pictures of text
            self._last[upload.site.name] = sent
        batches = as_batches(sent, self.settings, self.run.device)
        start = self._as_read(weights).tensors
        start = {name: value.to(self.run.device) for name, value in start.items()}
        ended = client_update(self._loss, start, batches)
        for name, value in ended.items():
            if not bool(torch.isfinite(value).all()):
                raise PayloadError(
                    f"its synthetic batches lead to a weight '{name}' that is infinite or NaN: lower "
                    "fedsynth.step_size or fedsynth.synthetic_lr"
                )
        return replace(upload, payload=Weights({k: v.cpu() for k, v in ended.items()}))

    def resulting_model(self, weights: Weights, upload: Upload) -> Weights | None:
        """Return where the replayed steps end."""
        return upload.payload if isinstance(upload.payload, Weights) else None

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Sum the replayed updates as they come, in float64, and divide once."""
        start = self._as_read(weights).tensors
        mean = self.average(Weights({k: t.double() for k, t in weights.tensors.items()}))
        for upload in uploads:
            ends = upload.payload_as(Weights).read_only
            moved = {name: ended.double() - start[name] for name, ended in ends.items()}
            mean.add(Weights(moved), share_of(upload, self.settings))
            del upload, ends, moved  # or they are held while the next device works
        moves = mean.result().tensors
        self._note_idle(moves)
        return Weights(
            {k: (t + moves[k]).to(t.dtype) for k, t in weights.tensors.items()}, weights.codec
        )

    def _as_read(self, weights: Weights) -> Weights:
        """Return w_r as the devices read it: with wire.weights=float16 their steps start from rounded weights.

        Read once a round, not once a site.
        """
        if weights.codec == "float32":
            return weights
        if self._read is None or self._read[0] is not weights:
            self._read = weights, self.run.spec.decode(weights.encode())
        return self._read[1]

    def _note_idle(self, moves: Mapping[str, Tensor]) -> None:
        """Log once which parameters no synthetic batch can change, such as an untied embedding of tokens."""
        if self._idle is None:
            self._idle = {name for name, move in moves.items() if not bool(move.any())}
            if self._idle and len(self._idle) < len(moves):
                logger.warning(
                    "no synthetic batch moved %s: they stay what they were at the start",
                    ", ".join(sorted(self._idle)),
                )

    def pictures(self) -> Mapping[str, SyntheticImages]:
        """Return the last round's inputs by site, as labelled images; none for text."""
        return {
            site: _images(self._last[site]) for site in self.outcome.accepted if site in self._last
        }


def _images(sent: SyntheticBatches) -> SyntheticImages:
    """Return the inputs of all batches with their hard labels, or the likeliest class of soft ones."""
    labels = sent.labels.argmax(-1) if sent.labels.is_floating_point() else sent.labels
    return SyntheticImages(sent.inputs.flatten(0, 1), labels.flatten(0, 1))
