"""SCAFFOLD on the server (Karimireddy et al., 2020, Algorithm 1): averages models and control variates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from logging import getLogger

import torch
from torch import Tensor

from common.errors import PayloadError
from common.learning.compute import pieces
from common.learning.run import Run
from common.learning.steps import local_steps
from common.settings.fedavg import ScaffoldSettings
from common.specs.averaging import CONTROL, WEIGHTS, bundle_spec, control_spec
from common.wire.bundle import Bundle, BundleSpec
from common.wire.coders import is_finite
from common.wire.int8_update import LEVELS
from common.wire.weights import CODECS, Weights
from strategies.averaging import shares_of
from strategies.base import State
from strategies.exchange.replies import Upload
from strategies.exchange.rules import CandidateModel, Clipping, Rule, model_rule
from strategies.fedavg import FedAvg

logger = getLogger("flwr")

#: the largest number of c that is kept: float16 reaches no further
_MOST = 6e4

#: how far (w_r - w_k) / (K eta) may be missed, as a share of it
_MISSED = 1e-3

#: times half a level that a coded update may be off: its largest number is one of float32
_SLACK = 1.01


class Scaffold(FedAvg):
    """w_{r+1} = mean of w_k, c <- c + |S| / K mean of (c_k+ - c_k), with K the sites that there are.

    With ``weighting=counts`` both means are weighted by p_k, and the sums of p_k replace |S| and K: c stays
    sum_k p_k c_k, the correction that the weighted optimum needs. The paper's eta_g is ``server_lr``.
    """

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        self._c = control_spec(run).zeros()

    def sends(self, weights: Weights) -> Bundle:
        """Return w_r and c."""
        return Bundle({WEIGHTS: weights, CONTROL: self._c})

    def expects(self) -> BundleSpec:
        """Return the form of w_k and the change of c_k."""
        return bundle_spec(self.run)

    def validation_rules(self) -> Mapping[str, Rule]:
        """Accept a model near the others' length, and a control variate that fits the model's path.

        Under option II c_k+ - c_k + c is (w_r - w_k) / (K eta), so that a site has no choice in it; the
        gradient of option I is compared with the others', as is what option II gives where what is left of earlier
        updates goes along with w_k.
        """
        control = Rule(
            "option II: (w_r - w_k) / (K eta) - c; option I: relative to the round's others, as the model",
            "c, and with it every site",
            "c, in the run's checkpoints",
            codec="float32",
        )
        if self._by_path and not self.run.config.wire.error_feedback:
            control = replace(control, require=self._require_path)
        else:
            start = control_spec(self.run).zeros()
            control = replace(
                control, candidate=lambda _, __, sent: CandidateModel(sent, start, part=CONTROL)
            )
        return {WEIGHTS: model_rule(), CONTROL: control}

    def clipped(self, upload: Upload, clipping: Clipping) -> Upload:
        """Return w_k nearer to w_r, and under option II what c_k changed by as the shorter path makes it."""
        shorter = super().clipped(upload, clipping)
        if clipping.part or not self._by_path:
            return shorter
        sent, c, share = shorter.payload_as(Bundle), self._c.read_only, clipping.share
        change = sent.part(CONTROL, Weights)
        nearer = {n: share * (t + c[n]) - c[n] for n, t in change.read_only.items()}
        parts = {**sent.parts, CONTROL: Weights(nearer, change.codec)}
        return replace(shorter, payload=Bundle(parts))

    @property
    def _by_path(self) -> bool:
        return self.run.settings(ScaffoldSettings).option == "II"

    def _require_path(self, weights: Weights, upload: Upload, change: Weights) -> None:
        settings = self.run.settings(ScaffoldSettings)
        steps = local_steps(self.run.config, settings, upload.examples)
        path = steps * settings.lr_in(self.round.number)
        ended, start = self.model_of(upload).read_only, weights.read_only
        missed = walked = size = 0.0
        for name, sent in change.read_only.items():
            for parts in pieces(start[name], ended[name], sent, self._c.read_only[name]):
                old, new, moved, c = (t.reshape(-1).to(torch.float64, copy=True) for t in parts)
                size += float(torch.dot(old, old) + torch.dot(new, new))
                there = old.sub_(new).div_(path)
                walked += float(torch.dot(there, there))
                gap = moved.add_(c).sub_(there)
                missed += float(torch.dot(gap, gap))
        rounded = CODECS[weights.codec] * (1 + math.sqrt(size) / path)
        allowed = _MISSED * math.sqrt(walked) + rounded + self._coarseness(start, ended) / path
        if math.sqrt(missed) > allowed:
            raise PayloadError(
                f"it is {math.sqrt(missed):.2g} from what {steps} steps from the weights that were sent to those that "
                f"came back make it, and rounding explains {allowed:.2g}"
            )

    def _coarseness(self, start: Mapping[str, Tensor], ended: Mapping[str, Tensor]) -> float:
        """Return how far w_k may be from the model that a site trained, by the levels of a coded update."""
        if not self.run.config.wire.updates:
            return 0.0
        steps = (
            float((ended[name].double() - start[name].double()).abs().max()) / LEVELS
            for name in self._c.read_only
        )
        sizes = (tensor.numel() for tensor in self._c.read_only.values())
        halves = (n * (step / 2) ** 2 for n, step in zip(sizes, steps, strict=True))
        return _SLACK * math.sqrt(sum(halves))

    def model_of(self, upload: Upload) -> Weights:
        """Return w_k."""
        return upload.payload_as(Bundle).part(WEIGHTS, Weights)

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Average both as they come."""
        mean, changes = self.average(weights), self.average(self._c)
        for upload in uploads:
            share = self.share(upload)
            mean.add(self.model_of(upload), share)
            changes.add(upload.payload_as(Bundle).part(CONTROL, Weights), share)
            del upload  # or it is held while the next device works
        all_shares = shares_of(self.sites, self.run)
        part, change = changes.total / all_shares, changes.result().tensors
        self._keep({name: c + part * change[name] for name, c in self._c.tensors.items()})
        return mean.result()

    def _keep(self, new: Mapping[str, Tensor]) -> None:
        """Keep a new c, unless it cannot be sent."""
        if all(is_finite(c) and not bool((c.abs() > _MOST).any()) for c in new.values()):
            self._c = Weights(new)
        else:
            logger.warning(
                "the new control variate exceeds %g and is not kept: c is unchanged", _MOST
            )

    def state_dict(self) -> State:
        """Return c."""
        return {CONTROL: dict(self._c.tensors)}

    def load_state_dict(self, state: State) -> None:
        """Restore c."""
        self._c = Weights(dict(state[CONTROL]))
