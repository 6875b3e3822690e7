"""Un-mixing of sums: A = sum m_i x_i x_i' and B = sum m_i x_i y_i' are linear in membership m, and are solved for it.

Over a pool of candidates (G + lambda I) m = r, with G_ij = (x_i'x_j)^2 + [y_i = y_j] x_i'x_j and
r_i = x_i'A x_i + x_i'B y_i: candidates by candidates, for any length of a row. Rows are whitened first, so
that members outside the pool resemble few of those in it.

Known controls, not members, choose lambda and the whitening: by the mean response of an m to membership, that of the
diagonal of (G + lambda I)^-1 G, over the deviation of the controls' m; where m is held in [0, 1], by how far the
others' mean lies above theirs. Their mean by class is subtracted: members outside the pool raise it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common.draws.seeding import generator
from nectar.audit.images.attacks import FITTED, MEMBER
from synth.ridge_regression import Sums, positive

MOST_POOLED = 6_000
"""Candidates that a pool has at most: several tables of all pairs of them are in memory."""

#: added to second moments, as a share of their diagonal: from white rows to scaled axes; lambda as a share of G's
_DAMPINGS, _PENALTIES = (1e-2, 1e-1, 1e3), (1e-6, 1e-3, 1e-1, 1.0, 10.0)
#: random signs by which a trace is estimated; steps of `_bounded`
_PROBES, _STEPS = 32, 200


@dataclass(frozen=True)
class Pool:
    """Candidates: their rows, float64 [n, d], classes as zeros and a one, and kind; and k sums of such rows.

    ``both``: A was sent with B. ``even``: each number has noise of one size, in the rows' own units.
    """

    rows: Tensor
    ones: Tensor
    kind: Tensor
    sums: Sequence[Sums]
    both: bool
    even: bool

    def scores(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each attack's name and m, [n, k]; NaN of who is outside a pool of all, or of half of the members."""
        drawn = torch.randperm(len(self.kind), generator=generator(0, "audit-pool"))
        members = drawn[self.kind[drawn] == MEMBER][: MOST_POOLED * 3 // 4]
        controls = drawn[self.kind[drawn] != MEMBER][: MOST_POOLED - len(members)]
        for name, some in {"": members, ", half of the members known": members[::2]}.items():
            at = torch.cat([some, controls])
            pool = Pool(
                self.rows[at], self.ones[at], self.kind[at], self.sums, self.both, self.even
            )
            ways = pool._solved(partly=len(some) < len(members))
            for way, m in zip(("unmixing", "unmixing, 0 to 1"), ways, strict=True):
                none = m.new_full((len(self.kind), m.shape[1]), torch.nan)
                yield way + name, none.index_copy(0, at, m)

    def _solved(self, *, partly: bool) -> tuple[Tensor, Tensor]:
        """Return m, plain and in [0, 1], each by the constants that explain most of each of the sums."""
        fitted, columns = self.kind == FITTED, len(self.sums)
        plain = bounded = self.rows.new_zeros(len(self.rows), columns)
        gain = explained = plain[0]
        of_class = self.ones[fitted].mT / (self.ones[fitted].sum(0)[:, None] + 1)
        signs = torch.randint(2, (len(plain), _PROBES), generator=generator(0, "audit-probes"))
        signs = 2 * signs.to(plain) - 1
        tables = [(damping, False) for damping in _DAMPINGS]
        if partly and self.both and not self.even:
            tables.append((_DAMPINGS[0], True))
        for damping, again in tables:
            gram, right = self._table(damping, 1 - plain[:, 0].clamp(0, 1) if again else None)
            size = gram.diagonal().mean()
            best, chosen, missing = gain * 0, gain * 0, plain * 0
            for penalty in _PENALTIES:
                added = penalty * size
                root = torch.linalg.cholesky(gram + added * torch.eye(len(gram)).to(gram))
                m = torch.cholesky_solve(right, root)
                response = 1 - added * (signs * torch.cholesky_solve(signs, root)).mean()
                bias = self.ones @ (of_class @ m[fitted])
                now = response / (m - bias)[fitted].square().mean(0).sqrt().clamp_min(1e-12)
                plain, gain = (m - bias).where(now > gain, plain), now.maximum(gain)
                chosen, missing = added.where(now > best, chosen), bias.where(now > best, missing)
                best = now.maximum(best)
            if not (
                partly or self.even
            ):  # exact sums of a full pool need no penalty, since no member is missing
                chosen, missing = (_PENALTIES[0] * size).expand(columns), missing * 0
            # a table in float32 is read in half the time
            m = _bounded(
                gram.float(), (right - gram @ missing.clamp_min(0)).float(), chosen.float()
            )
            above = m[~fitted].mean(0) - m[fitted].mean(0)
            now = above / m[fitted].std(0).clamp_min(1e-12)
            bounded, explained = m.to(plain).where(now > explained, bounded), now.maximum(explained)
        return plain, bounded

    def _table(self, damping: float, others: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return G [n, n] and r [n, k] of whitened rows: by all, or by ``others``, shares [n], and the first A."""
        rows = self.rows
        moments = rows.mT @ rows / len(rows)
        if others is not None:  # once members are suspected, A represents them and the missing ones
            moments = ((rows.mT * others) @ rows + positive(self.sums[0].squares)) / len(rows)
        scale = moments.diagonal().clamp_min(1e-9 * float(moments.diagonal().mean()))
        added = damping * (scale.mean().expand_as(scale) if self.even else scale)
        root = torch.linalg.cholesky(moments + added.diag())
        white = torch.linalg.solve_triangular(root, rows.mT, upper=False)
        # A of white rows is L^-1 A L^-T: x'A x becomes that of L^-T L^-1 x
        back = torch.linalg.solve_triangular(root.mT, white, upper=True).mT
        right = [
            (back @ each.squares * back).sum(1) * self.both
            + (back @ each.products * self.ones).sum(1)
            for each in self.sums
        ]
        products = white.mT @ white
        gram = products.square() * self.both + products * (self.ones @ self.ones.mT)
        return gram, torch.stack(right, 1)


def _bounded(gram: Tensor, right: Tensor, added: Tensor) -> Tensor:
    """Return the m in [0, 1] of the least m'(G + lambda I) m / 2 - m'r, by accelerated projected gradients."""
    way = torch.ones_like(gram[:, :1])
    for _ in range(20):
        way = gram @ (way / way.norm())
    length = way.norm() * 1.01 + added
    m = ahead = torch.full_like(right, 0.5)
    momentum = 1.0
    for _ in range(_STEPS):
        moved = (ahead - (gram @ ahead + added * ahead - right) / length).clamp(0, 1)
        after = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        turned = ((ahead - moved) * (moved - m)).sum(0) > 0  # O'Donoghue and Candès, 2015
        ahead = moved.where(turned, moved + (momentum - 1) / after * (moved - m))
        m, momentum = moved, after
    return m
