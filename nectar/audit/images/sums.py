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
from common.models.ridge import RidgeModel
from common.models.ridge_network import RidgeNetwork
from common.samples.inputs import Samples
from common.sites import ALL_SITES
from common.specs.ridge import Summing, model_of
from nectar.audit.images.attacks import COUNTED, FITTED
from nectar.audit.images.examining import MOST_SITES, Evidence
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

_DAMPING, _LABELLED_DAMPING = 1e-3, 1e-2
"""Shares of the diagonals that are added to what is inverted: of A, and of A, B and the counts together."""


def scores_of_sums(
    run: Run, checkpoint: Checkpoint, evidence: Evidence, members: Mapping[str, Samples]
) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
    """Yield each attack's scores of all candidates, float64 [n]: on the total, and on the first sites' own sums."""
    model = network_of(run, checkpoint)
    summed = model if isinstance(model, RidgeModel | RidgeNetwork) else model_of(run)
    summing = Summing(run, summed)
    rows, labels = map(torch.cat, zip(*summing.batches(evidence.candidates), strict=True))
    attacker = _Attacker(summing, rows, labels, evidence.kind)
    yield ALL_SITES, attacker.scores(Sums(*checkpoint.strategy[TOTAL]), len(members))
    if run.config.secret:  # no site's own sums have left it
        return
    for site, part in list(members.items())[:MOST_SITES]:
        sums = summing.sums(part, summing.large_enough(part.labels))
        if run.config.privacy.active:
            sums = _with_noise(sums, summing, generator(run.config.seed, "audit", site))
        yield site, attacker.scores(summing.received(summing.payload(sums)), 1)


def _with_noise(sums: Sums, summing: Summing, draws: torch.Generator) -> Sums:
    """Return sums with noise as a site's have it: on A's triangle and on B, or on B alone."""
    d, classes = summing.d, summing.classes
    numbers = summing.both * d * (d + 1) // 2 + d * classes
    noise = torch.randn(numbers, generator=draws, dtype=torch.float64) * summing.deviation(1)
    return sums + unpacked(noise, d, classes, as_long=True)


class _Attacker:
    """Knows every candidate's row and class, and which controls nobody summed."""

    def __init__(self, summing: Summing, rows: Tensor, labels: Tensor, kind: Tensor) -> None:
        self._summing, self._rows, self._labels = summing, rows, labels
        self._ones = torch.eye(summing.classes, dtype=torch.float64)[labels]
        fitted = kind == FITTED
        self._sides = [
            (judged, Sums.of(rows[known], labels[known], summing.classes))
            for judged, known in ((fitted, kind == COUNTED), (~fitted, fitted))
        ]

    def scores(self, sums: Sums, replies: int) -> dict[str, Tensor]:
        """Return scores, float64 [n], the higher the more a candidate looks like a member."""
        sums, deviation = (
            sums.scaled(torch.ones_like(self._summing.rows.by)),
            self._summing.deviation(replies),
        )
        if self._summing.both:  # A as it can be: noise and bytes leave it eigenvalues below 0
            root = sums.squares.diagonal().clamp_min(1e-12).sqrt()
            squares = positive(sums.squares / root[:, None] / root) * root[:, None] * root
            if deviation:
                penalty = penalty_of_noise(deviation, self._summing.d)
                squares = positive(sums.squares) + penalty * torch.eye(len(root), dtype=root.dtype)
            sums = Sums(squares, sums.products)
        found: dict[str, Tensor] = {}
        for judged, known in self._sides:
            for name, score in self._on(sums, known, judged):
                found.setdefault(name, torch.empty(len(judged), dtype=torch.float64))[judged] = (
                    score
                )
        return found

    def _on(self, sums: Sums, known: Sums, judged: Tensor) -> Iterator[tuple[str, Tensor]]:
        rows, ones = self._rows[judged], self._ones[judged]
        yield "class means", self._class_means(sums, known, judged)
        if not self._summing.both:
            return
        # x' (A/n)^-1 x is small of who was summed, above all beside what it is under S
        own = _leverages(self._mean_squares(sums), rows)
        yield "leverage", -own
        yield "ratio of leverages", _leverages(self._mean_squares(known), rows) - own
        pairs = torch.cat([rows, ones], 1)
        yield (
            "ratio of leverages with labels",
            _leverages(self._with_labels(known), pairs)
            - _leverages(self._with_labels(sums), pairs),
        )
        residuals = [
            (ones - rows @ _damped(each.squares, _DAMPING, each.products)).square().sum(1)
            for each in (known, sums)
        ]
        yield "residual", residuals[0] - residuals[1]

    def _class_means(self, sums: Sums, known: Sums, judged: Tensor) -> Tensor:
        """Return (x - mu')' S^-1 (mu - mu'): how far x lies on the way from the known mean of its class to the sent."""
        here, labels = self._counts(known).clamp_min(1), self._labels[judged]
        mean = known.products / here
        moved = sums.products / self._counts(sums).clamp_min(1) - mean
        within = self._mean_squares(known) - (mean * here) @ mean.mT / here.sum()
        ways = _damped(within, _DAMPING, moved)
        return ((self._rows[judged] - mean.mT[labels]) * ways.mT[labels]).sum(1)

    def _counts(self, sums: Sums) -> Tensor:
        return sums.products[-1] / self._summing.rows.constant

    def _mean_squares(self, sums: Sums) -> Tensor:
        return sums.squares / self._summing.count(sums)

    def _with_labels(self, sums: Sums) -> Tensor:
        """Return the mean of (x, y)(x, y)', which B and the counts complete."""
        below = torch.cat([sums.products.mT, self._counts(sums).clamp_min(0).diag()], 1)
        whole = torch.cat(
            [torch.cat([sums.squares, sums.products], 1), below]
        ) / self._summing.count(sums)
        return whole + (_LABELLED_DAMPING - _DAMPING) * whole.diagonal().clamp_min(1e-9).diag()


def _damped(matrix: Tensor, share: float, right: Tensor) -> Tensor:
    solution: Tensor = torch.linalg.solve(
        matrix + share * matrix.diagonal().clamp_min(1e-9).diag(), right
    )
    return solution


def _leverages(mean_squares: Tensor, rows: Tensor) -> Tensor:
    """Return x' M^-1 x of each row, float64 [n]."""
    return (rows * _damped(mean_squares, _DAMPING, rows.mT).mT).sum(1)
