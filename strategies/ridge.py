"""Ridge regression at the server: the sites' sums, added and solved, exactly and once."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, reduce
from logging import getLogger
from operator import add
from typing import Any

import torch
from torch import Tensor, nn

from common.division import Division
from common.errors import ConfigError, FederationError
from common.learning.run import Run
from common.models.ridge import RidgeNetwork
from common.samples.inputs import Samples, samples
from common.settings.ridge import STUDENT
from common.sites import Site
from common.specs.ridge import AGAIN, PHASE, Summing, check, joint_of, joint_spec, model_of
from common.wire.tensors import Tensors
from common.wire.weights import Weights
from strategies.base import Instruction, State, Strategy
from strategies.exchange.membership import listed
from strategies.exchange.replies import Upload
from strategies.exchange.rules import Rule
from strategies.secret import cost_of_totals
from strategies.taught import taught
from synth.ridge_regression import (
    Curve,
    Sums,
    chance_error,
    coding_error,
    joined,
    penalty_of_noise,
    positive,
    with_covariance,
    within,
)

logger = getLogger("flwr")

_LATE = "federation.newcomers"
_LEAST_ERROR = 1e-3
"""The least squared error of a score that is accepted, however well the sums are explained."""
TOTAL, _ROWS, _SITES, _FORGOTTEN = "total", "rows", "sites", "forgotten"


class Ridge(Strategy):
    """w = (A + lambda I)^-1 B of the sums of all sites, and of the server's own examples where they join.

    Scores s = w' x estimate a one-hot y. With one error e of each number, y ~ N(s, e I), class c has the probability
    softmax(s / e)_c: the model's logits are s / e, e by generalised cross-validation, under noise that of a guess.

    Raises
    ------
    ConfigError
        If the run is impossible, or needs the server's examples and has none, or fewer than axes.
    """

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        self.settings = check(run)
        self._own = self._labelled() if self.settings.trains_on_validation else None
        self._total: Sums | None = None
        self._rows: dict[str, float] = {}  # by site
        self._of_sites: dict[str, Sums] = {}
        self._forgotten: list[str] = []
        self._told: dict[str, float] = {}
        self._second: Summing | None = None

    def _labelled(self) -> Samples:
        """Return the server's own examples."""
        division, settings = Division(self.run.config), self.settings
        held = 0 if self.run.config.data.validated_at_sites else len(division.validation)
        needed = (
            min(settings.width, len(model_of(self.run).offset) + 1)
            if settings.axes == "server"
            else 1
        )
        if held < needed:
            raise ConfigError(
                f"ridge.server={'on' if settings.server else 'off'}, ridge.axes={settings.axes}, "
                f"ridge.student={settings.student or 'nothing'} take {needed} or more "
                f"validation examples, which the server holds back, and there are {held}: raise data.validation, "
                "with data.validation_at=server, or lower ridge.width"
            )
        return samples(division.dataset.train, self.run.info, division.validation).to(
            self.run.device
        )

    @property
    def _summing(self) -> Summing:
        """The form of the round's sums."""
        return self._second or self._first

    @cached_property
    def _first(self) -> Summing:
        """The form of the first round's sums: by the model that all draw, or with the server's axes."""
        model = model_of(self.run)
        if self.settings.axes == "server" and self._own is not None:
            model = copy.deepcopy(model)
            starts = range(0, len(self._own), 100)
            with torch.no_grad():
                parts = [
                    model.features(self._own.inputs(slice(at, at + 100)).double()) for at in starts
                ]
            model.turn(model.along(torch.cat(parts).cpu()))
        return Summing(self.run, model)

    def choose(self, server_round: int) -> list[Site]:
        """Return the round's sites; once there is a total, those that neither are in it nor have left it."""
        if not self._rows or self.settings.refit:
            return super().choose(server_round)
        done = {*self._rows, *self._forgotten}
        return [site for site in self.sites if site.name not in done]

    def instructions(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Ask every site for its sums; the model, which it draws itself, goes down where the axes are the server's."""
        if server_round == self.run.config.rounds and self.settings.refit:
            if server_round == 1:
                weights = self._own_network()
            self._second = Summing(self.run, joint_of(self.run, weights))
            self._total, self._rows = None, {}
        if self.settings.alone:
            return {}
        if self._second is not None:
            again = Instruction(AGAIN, weights.only(joint_spec(self.run)), self._second.spec)
            return {site.name: again for site in sites}
        model = self._summing.model
        sent = Weights.of(model, weights.codec) if self.settings.axes == "server" else Tensors({})
        return {site.name: Instruction(PHASE, sent, self._summing.spec) for site in sites}

    def validation_rules(self) -> Mapping[str, Rule]:
        """Believe sums of no more rows than the site has examples, each within what rows can be."""

        def require(_: Weights, upload: Upload, sent: Tensors) -> None:
            most = self.run.config.federation.max_examples
            self._summing.require(sent, upload.examples if self.run.config.tells_counts else most)

        by = "sums of no more rows than the site has examples, each within what rows can be"
        return {
            "": Rule(
                by, "the server's solution", "the total; `ridge.keep` says whether alone", require
            )
        }

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Add the sums in site order, and solve."""
        summing = self._summing
        for upload in uploads:
            sums = summing.received(upload.payload_as(Tensors))
            self._total = sums if self._total is None else self._total + sums
            inside = upload.inside or (upload.site.name,)
            self._rows |= dict.fromkeys(inside, summing.count(sums) / len(inside))
            if summing.noisy_integers:
                self._told |= cost_of_totals(self.run.config, [len(inside)], summing.event)
            if self.settings.keep == "sites":
                self._of_sites[upload.site.name] = sums
        if self.settings.alone:
            solution = self._of_own(summing)
        else:
            assert self._total is not None
            solution = self._solved(self._total)
        model = copy.deepcopy(summing.model)
        if self.settings.student and self._own is not None:
            self._told["trained_on"] = len(self._own)
        if self._second is not None or not self.settings.student or self._own is None:
            _fill(model.head, solution / self._told["error"])
            return Weights.of(model, weights.codec)
        _fill(model.head, solution)
        student = taught(self.run.with_model(STUDENT), server_round, model, self._own)
        return self._joint(solution, student, self._own) if self.settings.refit else student

    def _own_network(self) -> Weights:
        """Return the model of a single round: its network learns from the server's examples and their solution."""
        assert self._own is not None
        solution, teacher = self._of_own(self._first), copy.deepcopy(self._first.model)
        _fill(teacher.head, solution)
        student = taught(self.run.with_model(STUDENT), 0, teacher, self._own)
        return self._joint(solution, student, self._own)

    def _of_own(self, summing: Summing) -> Tensor:
        """Return the solution of the server's own examples alone, float64 [d, classes]."""
        assert self._own is not None
        self._told["trained_on"] = len(self._own)
        sums = summing.sums(self._own).scaled(summing.rows.by)
        solution = self._least_squares(sums, len(self._own))
        if summing is self._second:  # whose network has learned these very examples
            self._told["error"] = chance_error(solution.shape[1])
        return solution

    @torch.no_grad()
    def _joint(self, solution: Tensor, student: Weights, own: Samples) -> Weights:
        """Return the second round's model before it: the network, its embedding's scale over ``own``, z's solution."""
        model = self.run.build_model().eval()
        assert isinstance(model, RidgeNetwork)
        kept = {n: t for n, t in student.tensors.items() if not n.startswith("head.")}
        Weights(kept).load_into(model.network)
        seen = torch.cat([model.seen(x) for x in torch.split(own.inputs(slice(None)), 250)])
        model.mean.copy_(seen.mean(0))
        model.deviation.copy_(seen.std(0).clamp_min(1e-3))
        none = solution.new_zeros(len(model.mean), solution.shape[1])
        _fill(model.head, torch.cat([solution[:-1], none, solution[-1:]]) / self._told["error"])
        return Weights.of(model)

    def _solved(self, total: Sums) -> Tensor:
        """Return the weights for places, and for a constant of 1, float64 [d, classes]."""
        summing, rows = self._summing, self._summing.rows
        own = None
        if self._own is not None and self.settings.server:
            own, self._told["trained_on"] = summing.sums(self._own), len(self._own)
        deviation, count = summing.deviation(len(self._rows)), summing.count(total)
        sums = total.scaled(torch.ones_like(rows.by))
        self._told["error"] = chance_error(sums.products.shape[1])
        if own is not None and deviation:
            return joined(own, sums.products, count, deviation) / rows.by[:, None]
        if own is not None:
            sums, count = sums + own, count + summing.count(own)
        if not summing.both:
            public = torch.diag(rows.variance) if own is None else within(own, rows.constant)
            sums = with_covariance(sums.products, public, rows.constant)
        if deviation:  # solved for as they are: each number has noise of one size
            sums = Sums(positive(sums.squares), sums.products)
            penalty = self._penalty(penalty_of_noise(deviation, summing.d))
            return sums.solved(penalty) / rows.by[:, None]
        if summing.both and not rows.steps:
            shares = torch.tensor([*self._rows.values()]) / count
            sums = sums.mended(coding_error(shares, summing.d))
        return self._least_squares(sums.scaled(rows.by), count)

    def _least_squares(self, sums: Sums, rows: float) -> Tensor:
        """Return the solution of sums without noise, and note the squared error of a score on a new example."""
        curve, classes = Curve.of(sums, rows), sums.products.shape[1]
        penalty = self._penalty(curve.least())
        found = float(curve.score(torch.tensor(penalty, dtype=torch.float64))) / classes
        self._told["error"] = min(max(found, _LEAST_ERROR), chance_error(classes))
        return sums.solved(penalty)

    def _penalty(self, chosen: float) -> float:
        """Return lambda, the one that was chosen unless another is set, and note it."""
        penalty = chosen if self.settings.lam == "gcv" else float(self.settings.lam)
        self._told["penalty"] = penalty
        return penalty

    def notes(self) -> Mapping[str, Any]:
        """Return lambda, and who is in a total of another record."""
        if not self.derived_by:
            return self._told
        return {**self._told, "in_total": [*self._rows], _FORGOTTEN: self._forgotten}

    def state_dict(self) -> State:
        """Return the total, its rows by site, each site's sums where they are kept, and who was taken out."""
        if self._total is None:
            return {}
        kept = {name: list(vars(sums).values()) for name, sums in self._of_sites.items()}
        total = {TOTAL: list(vars(self._total).values()), _ROWS: self._rows, _SITES: kept}
        return {**total, _FORGOTTEN: self._forgotten}

    def load_state_dict(self, state: State) -> None:
        """Restore the state."""
        if state:
            self._total, self._rows = Sums(*state[TOTAL]), dict(state[_ROWS])
            self._of_sites = {name: Sums(*parts) for name, parts in state[_SITES].items()}
            self._forgotten = [*state[_FORGOTTEN]]
            named = map(str.strip, self.settings.forget.split(","))
            self._leaving = {name for name in named if name} - {*self._forgotten}
            self.asks_sites = _LATE in self.derived_by and not self._leaving

    # ---- late and leaving sites -----------------------------------------------------------------------

    @property
    def derived_by(self) -> Sequence[str]:
        """Name the settings by which sites join or leave the total of a record."""
        config = self.run.config
        asked = {"ridge.forget": self.settings.forget, _LATE: config.federation.newcomers == "any"}
        return [key for key, wanted in asked.items() if wanted and config.resume]

    def derive(self) -> Collection[str]:
        """Subtract the sites that leave, without a request; or check that a new one is there.

        The others' sums are added again, in their order: to the bits of a run of these alone.
        """
        record, total = self.run.config.resume, f"has {listed([*self._rows])} in its total"
        if leaving := sorted(self._leaving):
            if not self._of_sites.keys() > self._leaving:
                raise FederationError(
                    f"ridge.forget={self.settings.forget}: {record} {total}; name some of these, not all"
                )
            for name in leaving:
                del self._of_sites[name], self._rows[name]
            self._total = reduce(add, self._of_sites.values())
            self._forgotten += leaving
            logger.warning(
                "%s: out of the new record. NOT forgotten: %s, copies and exports of it, and what was learned from it",
                *(listed(leaving), record),
            )
        elif not self.choose(1):
            out = f", and {listed(self._forgotten)} forgotten" if self._forgotten else ""
            raise FederationError(
                f"no site is new: {record} {total}{out}; start one, then say {_LATE}=any"
            )
        return self._rows.keys()


@torch.no_grad()
def _fill(head: nn.Module, solution: Tensor) -> None:
    """Put a solution [d, classes], whose last row is the constant's, into a linear layer."""
    for parameter, part in zip(head.parameters(), (solution[:-1].mT, solution[-1]), strict=True):
        parameter.copy_(part)
