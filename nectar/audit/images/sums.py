"""Attacks on sums of features: how much each candidate looks as if its row were among those summed.

x is a candidate's row, y its class as zeros and a one; A, B are the sums of n rows, and S = A'/n', B' those of the
controls that the attacker has. Each candidate is held against one half of the controls, and a control against the
half that it is not in: within its own sums it would look like a member.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from common.draws.seeding import generator
from common.learning.run import Run
from common.models.ridge import RidgeModel, RidgeNetwork
from common.samples.inputs import Samples
from common.sites import ALL_SITES
from common.specs.ridge import Summing, model_of
from nectar.audit.images.attacks import COUNTED, FITTED
from nectar.audit.images.examining import MOST_SITES, Evidence
from nectar.audit.images.unmixing_sums import MOST_POOLED, Pool
from nectar.export.bundle import network_of
from server_app.checkpoint import Checkpoint
from strategies.ridge import TOTAL
from synth.ridge_regression import Sums, penalty_of_noise, positive, unpacked

SUMS_NOTE = (
    "A site's own sums are not in the record: they were made again of its images, with noise of the run's size where "
    "they had noise."
)

REFIT_NOTE = "The sums of the first round are not in the record: those of the second are attacked, and both left."
TOTAL_NOTE = (
    "The sums were one secret sum: the server that follows the protocol had the total, which is attacked, and no "
    "site's own."
)
POOL_NOTE = (
    f"Un-mixing of sums solves for at most {MOST_POOLED:,} candidates, drawn from all: only members among these count. "
    "A total without noise hides no member who is among a reader's candidates, for any number of equations."
)

_DAMPING = 1e-3
"""The share of A's diagonal that is added to it before it is inverted."""


def scores_of_sums(
    run: Run, checkpoint: Checkpoint, evidence: Evidence, members: Mapping[str, Samples]
) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
    """Yield each attack's scores of all candidates, float64 [n]: on the total, and on the first sites' own sums."""
    model = network_of(run, checkpoint)
    summed = model if isinstance(model, RidgeModel | RidgeNetwork) else model_of(run)
    summing = Summing(run, summed)
    rows, labels = map(torch.cat, zip(*summing.batches(evidence.candidates), strict=True))
    attacker = _Attacker(summing, rows, labels, evidence.kind)
    sent = {ALL_SITES: Sums(*checkpoint.strategy[TOTAL])}
    # of a secret sum no site's own have left it
    for site, part in () if run.config.secret else list(members.items())[:MOST_SITES]:
        sums = summing.sums(part, summing.large_enough(part.labels))
        if run.config.privacy.active:
            sums = _with_noise(sums, summing, generator(run.config.seed, "audit", site))
        sent[site] = summing.received(summing.payload(sums))
    sent = {who: sums.scaled(torch.ones_like(summing.rows.by)) for who, sums in sent.items()}
    ones = torch.eye(summing.classes, dtype=rows.dtype)[labels]
    pool = Pool(rows, ones, evidence.kind, [*sent.values()], summing.both, summing.rows.bound)
    solved = dict(pool.scores())
    for place, (who, sums) in enumerate(sent.items()):
        replies = len(members) if who == ALL_SITES else 1
        by_unmixing = {name: scores[:, place] for name, scores in solved.items()}
        yield who, {**attacker.scores(sums, replies), **by_unmixing}


def _with_noise(sums: Sums, summing: Summing, draws: torch.Generator) -> Sums:
    """Return sums with noise as a site's have it: on A's triangle and on B, or on B alone."""
    noise = torch.randn(summing.numbers, generator=draws, dtype=torch.float64)
    noise *= summing.deviation(1)
    return sums + unpacked(noise, summing.d, summing.classes, as_long=True)


class _Attacker:
    """Knows every candidate's row and class, and which controls no site summed."""

    def __init__(self, summing: Summing, rows: Tensor, labels: Tensor, kind: Tensor) -> None:
        self._summing, self._rows = summing, rows
        fitted = kind == FITTED
        self._sides = [
            (judged, Sums.of(rows[known], labels[known], summing.classes))
            for judged, known in ((fitted, kind == COUNTED), (~fitted, fitted))
        ]

    def scores(self, sums: Sums, replies: int) -> dict[str, Tensor]:
        """Return scores, float64 [n], the higher the more a candidate looks like a member; none without A."""
        if not self._summing.both:
            return {}
        squares, deviation = sums.squares, self._summing.deviation(replies)
        # as A can be: noise and bytes leave it eigenvalues below 0
        root = squares.diagonal().clamp_min(1e-12).sqrt()
        squares = positive(squares / root[:, None] / root) * root[:, None] * root
        if deviation:
            penalty = penalty_of_noise(deviation, self._summing.d)
            squares = positive(sums.squares) + penalty * torch.eye(len(root), dtype=root.dtype)
        found = {
            n: self._rows.new_empty(len(self._rows)) for n in ("leverage", "ratio of leverages")
        }
        for judged, known in self._sides:
            # x' (A/n)^-1 x is small of who was summed, above all beside what it is under S
            own = self._leverages(Sums(squares, sums.products), judged)
            found["leverage"][judged] = -own
            found["ratio of leverages"][judged] = self._leverages(known, judged) - own
        return found

    def _leverages(self, sums: Sums, judged: Tensor) -> Tensor:
        """Return x' M^-1 x, M = A/n, of the rows judged."""
        rows, mean = self._rows[judged], sums.squares / self._summing.count(sums)
        damped = mean + _DAMPING * mean.diagonal().clamp_min(1e-9).diag()
        leverages: Tensor = (rows * torch.linalg.solve(damped, rows.mT).mT).sum(1)
        return leverages
