"""Un-mixing names who is in sums, in every form that they travel in; of people who are not in them it names nobody."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from federation import run
from small import Small
from tiers import only_these_first
from torch import Tensor

from common.config.loading import load
from common.division import Division
from common.samples.inputs import samples
from common.specs.ridge import Summing, model_of
from nectar.audit.images.at_record import audit_record
from nectar.audit.images.attacks import COUNTED, FITTED, MEMBER, Scored, figures
from nectar.audit.images.unmixing_sums import Pool, _bounded
from synth.ridge_regression import Sums, unpacked

pytestmark = pytest.mark.promise(
    "What leaves a site is not a private image",
    "The audit of sums names the members in its pool from a site's sums, a total, a secret "
    "total, whole numbers and int8; of a pool without a member, or under much noise, no more "
    "than false alarms",
)

MEMBERS = 360
PLAIN, HELD = "unmixing", "unmixing, 0 to 1"
HALF, HALF_HELD = f"{PLAIN}, half of the members known", f"{HELD}, half of the members known"


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pool have 900 candidates, for speed."""
    monkeypatch.setattr("nectar.audit.images.unmixing_sums.MOST_POOLED", 900)


# ---- by hand --------------------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("both", [True, False])
def test_two_rows_at_right_angles_by_hand(both: bool) -> None:
    """Second moments I / 2, damped to I: white rows are the rows, G is 2 I of A and B and I of B alone, r = G m."""
    rows = torch.eye(2, dtype=torch.float64)
    shares = torch.tensor([1.0, 0.25], dtype=torch.float64)
    sums = Sums(torch.diag(shares), torch.stack([shares * rows[0], shares * rows[1]], 1))
    pool = Pool(rows, rows, torch.tensor([MEMBER, FITTED]), [sums], both, even=False)
    gram, right = pool._table(1.0, None)
    expected = 2.0 if both else 1.0
    torch.testing.assert_close(gram, expected * rows, rtol=0, atol=1e-15)
    torch.testing.assert_close(right[:, 0], expected * shares, rtol=0, atol=1e-15)


def test_the_table_is_the_product_of_what_each_candidate_adds_to_the_sums() -> None:
    """G = F F' and r = F s, F the vectors (L^-1 x x' L^-T, L^-1 x y') written out, s the sums of some of them."""
    numbers = torch.Generator().manual_seed(1)
    rows = torch.randn(12, 4, generator=numbers, dtype=torch.float64)
    labels = torch.arange(12) % 3
    ones = torch.eye(3, dtype=torch.float64)[labels]
    sums = Sums.of(rows[:5], labels[:5], 3)
    moments = rows.mT @ rows / 12
    root = torch.linalg.cholesky(moments + 0.1 * moments.diagonal().diag())
    white = torch.linalg.solve(root, rows.mT).mT
    vectors = torch.cat(
        [
            (white[:, :, None] * white[:, None]).flatten(1),
            (white[:, :, None] * ones[:, None]).flatten(1),
        ],
        1,
    )
    gram, right = Pool(rows, ones, torch.full((12,), FITTED), [sums], True, False)._table(0.1, None)
    torch.testing.assert_close(gram, vectors @ vectors.mT)
    torch.testing.assert_close(right[:, 0], vectors @ vectors[:5].sum(0))


def test_held_to_0_and_1_by_hand() -> None:
    """(3, 0) over ((2, 1), (1, 2)) is (2, -1); the nearest in the square, at its corner, is (1, 0)."""
    gram = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    right = torch.tensor([[3.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    m = _bounded(gram, right, torch.tensor([0.0, 1.0], dtype=torch.float64))
    expected = torch.tensor([[1.0, 0.25], [0.0, 0.25]], dtype=torch.float64)
    torch.testing.assert_close(m, expected, rtol=0, atol=1e-9)


# ---- every form of sums ---------------------------------------------------------------------------------------


@cache
def candidates(words: str) -> tuple[Summing, Tensor, Tensor]:
    """Return how digits are summed, and all rows and labels, in an order that has no meaning."""
    division = Division(load({"method": "ridge", "set": f"seed=0 {words}"}))
    summing, data = Summing(division.run, model_of(division.run)), division.dataset
    parts = [samples(each, division.run.info) for each in (data.train, data.test)]
    batches = [batch for part in parts for batch in summing.batches(part)]
    rows, labels = map(torch.cat, zip(*batches, strict=True))
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(3))
    return summing, rows[order], labels[order]


def found(
    words: str, summed: slice, sites: int = 3, members: slice = slice(0, MEMBERS)
) -> dict[str, Any]:
    """Return the figures of each attack on the total of the rows ``summed``, as ``sites`` sent them."""
    summing, rows, labels = candidates(words)
    numbers, total = torch.Generator().manual_seed(5), None
    for part in torch.arange(len(rows))[summed].tensor_split(sites):
        sums = Sums.of(rows[part], labels[part], summing.classes)
        if summing.rows.bound:
            noise = torch.randn(summing.numbers, generator=numbers, dtype=torch.float64)
            noise *= summing.deviation(1)
            sums = sums + unpacked(noise, summing.d, summing.classes, as_long=True)
        if not summing.noisy_integers:
            sums = summing.received(summing.payload(sums))
        total = sums if total is None else total + sums
    assert total is not None
    total = total.scaled(torch.ones_like(summing.rows.by))
    kind = torch.full((len(rows),), FITTED)
    kind[1::2], kind[members] = COUNTED, MEMBER
    there = torch.ones(len(rows), dtype=torch.bool)
    there[summed] = False
    there[members] = True  # who was summed and is no candidate is nobody's control
    ones = torch.eye(summing.classes, dtype=torch.float64)[labels]
    pool = Pool(rows[there], ones[there], kind[there], [total], summing.both, summing.rows.bound)
    figures_of = {}
    for name, scores in pool.scores():
        asked = ~scores[:, 0].isnan()
        sides = [(kind[there] == each) & asked for each in (MEMBER, FITTED, COUNTED)]
        figures_of[name] = figures(
            *(Scored(scores[:, 0], labels[there]).at(side) for side in sides)
        )
    return figures_of


FORMS = {
    "a total": ("ridge.width=129", 3),
    "one site's own": ("ridge.width=129", 1),
    "of whole numbers": ("ridge.width=129 ridge.form=integers", 3),
    "a secret total": ("ridge.width=129 federation.secret=on", 1),
    "of few equations": ("ridge.width=65", 3),
}


@pytest.mark.extended
@pytest.mark.parametrize("form", only_these_first(FORMS, "a total"))
def test_who_is_in_the_sums_and_in_the_pool_is_named(form: str) -> None:
    words, sites = FORMS[form]
    by = found(words, slice(0, MEMBERS), sites)
    assert max(by[name].found for name in (PLAIN, HELD)) > 0.97
    assert max(by[name].false_alarms for name in (PLAIN, HELD)) < 0.04
    assert by[HALF].members == MEMBERS // 2


@pytest.mark.extended
def test_fewer_equations_than_candidates_name_many() -> None:
    """d 25: 575 equations, 900 candidates."""
    by = found("ridge.width=25", slice(0, MEMBERS))
    assert max(by[name].found for name in (PLAIN, HELD)) > 0.2


@pytest.mark.extended
def test_with_half_of_the_members_in_the_pool_half_of_these_are_named() -> None:
    by = found("ridge.width=257", slice(0, 600), members=slice(0, 600))
    assert max(by[name].found for name in (HALF, HALF_HELD)) > 0.3
    assert max(by[name].false_alarms for name in (HALF, HALF_HELD)) < 0.06


@pytest.mark.extended
@pytest.mark.parametrize("form", only_these_first(FORMS, "a total"))
def test_of_a_pool_without_a_member_nobody_is_named(form: str) -> None:
    """The sums are of others: those who are asked about look like controls."""
    words, sites = FORMS[form]
    for name, each in found(words, slice(MEMBERS, 2 * MEMBERS), sites).items():
        assert abs(each.area - 0.5) < 4 * each.area_error, name
        assert each.found < 0.08, name


@pytest.mark.extended
@pytest.mark.parametrize("secret", ["", "federation.secret=on"])
def test_much_noise_leaves_false_alarms(secret: str) -> None:
    words = f"ridge.width=65 privacy.noise_multiplier=50 {secret}"
    for name, each in found(words, slice(0, MEMBERS)).items():
        assert abs(each.area - 0.5) < 4 * each.area_error, name
        assert each.found < 0.08, name


@pytest.mark.extended
def test_little_noise_hides_hardly_anybody() -> None:
    by = found("ridge.width=129 privacy.noise_multiplier=0.02", slice(0, MEMBERS))
    assert max(by[name].found for name in (PLAIN, HELD)) > 0.6


@pytest.mark.extended
def test_a_pool_has_a_most_and_says_who_is_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nectar.audit.images.unmixing_sums.MOST_POOLED", 400)
    by = found("ridge.width=65", slice(0, MEMBERS))
    assert by[PLAIN].members == 300
    assert by[PLAIN].controls <= 100


# ---- in a record ----------------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("words", ["", "federation.secret=on", "ridge.sums=class ridge.width=1025"])
def test_the_audit_of_a_record_reports_the_worst(small: Small, words: str) -> None:
    record = run(small(method="ridge", rounds=1, set=f"data.images=300 ridge.width=129 {words}"))
    content = audit_record(record.directory)
    attacks = content["all"]["attacks"]
    assert {PLAIN, HELD, HALF, HALF_HELD} <= set(attacks)
    strongest = attacks[content["all"]["strongest"]]
    assert strongest["found"] == max(each["found"] for each in attacks.values())
    assert strongest["found"] > (0.5 if "class" in words else 0.97)
    own = [PLAIN in site["attacks"] for site in content["sites"].values()]
    assert own == [not words.startswith("federation")] * 3
