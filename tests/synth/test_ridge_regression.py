"""Sums of features against closed forms in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from synth.ridge_regression import (
    SENSITIVITY,
    Curve,
    Rows,
    Sums,
    coded,
    coding_error,
    decoded,
    joined,
    own_roots,
    penalty_of_noise,
    positive,
    square,
    triangle,
    with_covariance,
    within,
)


def _examples(n=60, d=7, classes=3, seed=0):
    draws = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, d, generator=draws, dtype=torch.float64) * torch.linspace(2, 0.3, d)
    rows[:, -1] = 1
    labels = torch.randint(classes, (n,), generator=draws)
    rows[:, 0] += labels
    return rows, labels


def _one_hot(labels, classes=3):
    return torch.nn.functional.one_hot(labels, classes).double()


def test_the_solution_is_that_of_least_squares_with_a_row_more_for_each_weight():
    rows, labels = _examples()
    sums = sum(
        (Sums.of(rows[part], labels[part], 3) for part in torch.arange(60).chunk(4)),
        Sums.of(rows[:0], labels[:0], 3),
    )
    penalty = 0.7
    left = np.vstack([rows.numpy(), math.sqrt(penalty) * np.eye(7)])
    right = np.vstack([_one_hot(labels).numpy(), np.zeros((7, 3))])
    expected = np.linalg.lstsq(left, right, rcond=None)[0]
    np.testing.assert_allclose(sums.solved(penalty).numpy(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("penalty", [1e-3, 0.5, 40.0])
def test_generalised_cross_validation_is_that_of_the_explicit_hat_matrix(penalty):
    rows, labels = _examples()
    y = _one_hot(labels)
    hat = rows @ torch.linalg.inv(rows.mT @ rows + penalty * torch.eye(7)) @ rows.mT
    residual = ((torch.eye(60) - hat) @ y).square().sum()
    freedom = hat.trace()
    curve = Curve.of(Sums.of(rows, labels, 3), 60)
    at = torch.tensor(penalty, dtype=torch.float64)
    assert float(curve.score(at)) == pytest.approx(
        float(60 * residual / (60 - freedom) ** 2), rel=1e-9
    )


def test_the_lambda_that_is_chosen_has_the_least_score():
    rows, labels = _examples(n=25, d=12, seed=3)
    curve = Curve.of(Sums.of(rows, labels, 3), 25)
    found = curve.score(torch.tensor(curve.least(), dtype=torch.float64))
    grid = torch.logspace(-6, 4, 5000, dtype=torch.float64)
    assert float(found) <= float(curve.score(grid).min()) * (1 + 1e-6)


def test_no_score_is_given_where_there_are_as_many_parameters_as_rows():
    rows, labels = _examples(n=5, d=7)
    assert math.isinf(
        Curve.of(Sums.of(rows, labels, 3), 5).score(torch.tensor(0.0, dtype=torch.float64))
    )


def test_a_triangle_is_as_long_as_its_matrix_and_gives_it_back():
    matrix = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    matrix = matrix + matrix.mT
    long = triangle(matrix, as_long=True)
    assert float(long.norm()) == pytest.approx(float(matrix.norm()), rel=1e-12)
    torch.testing.assert_close(square(long, 6, as_long=True), matrix)
    torch.testing.assert_close(square(triangle(matrix), 6), matrix)


def test_no_example_moves_both_sums_by_more_than_the_sensitivity_and_one_does():
    draws = torch.Generator().manual_seed(2)
    rows = Rows(torch.tensor([3.0, 1.0, 0.2, 0.1], dtype=torch.float64), bound=True)
    wild = torch.randn(5000, 4, generator=draws, dtype=torch.float64)
    wild *= 10 ** (6 * torch.rand(5000, 1, generator=draws, dtype=torch.float64) - 3)
    x = rows.of(torch.cat([wild, torch.full((1, 4), math.inf), torch.full((1, 4), math.nan)]))
    y = _one_hot(torch.randint(3, (len(x),), generator=draws))
    whole = torch.cat(
        [
            triangle(x[:, :, None] * x[:, None], as_long=True),
            (x[:, :, None] * y[:, None]).flatten(1),
        ],
        1,
    )
    moved = whole.norm(dim=1)
    assert float(moved.max()) <= SENSITIVITY * (1 + 1e-12)
    assert float(moved.max()) == pytest.approx(SENSITIVITY, rel=1e-9)
    assert float((x[:, :, None] * y[:, None]).flatten(1).norm(dim=1).max()) == pytest.approx(
        1, rel=1e-9
    )
    assert not bool(x[-2:].any())


def test_whole_rows_have_the_same_total_bit_for_bit_over_any_division_and_order():
    rows = Rows(torch.tensor([2.0, 0.5, 0.1], dtype=torch.float64), steps=16)
    draws = torch.Generator().manual_seed(4)
    x = rows.of(torch.randn(400, 3, generator=draws, dtype=torch.float64))
    labels = torch.randint(3, (400,), generator=draws)
    assert torch.equal(x, x.round())
    expected = Sums.of(x, labels, 3)
    for parts in (2, 7, 400):
        order = torch.randperm(400, generator=draws)
        total = Sums.of(x[:0], labels[:0], 3)
        for part in order.chunk(parts):
            total = total + Sums.of(x[part], labels[part], 3)
        assert torch.equal(total.squares, expected.squares)
        assert torch.equal(total.products, expected.products)


def test_the_solution_for_rows_gives_weights_for_the_places():
    spread = torch.tensor([2.0, 0.5, 0.1], dtype=torch.float64)
    places = (
        torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5)) * 0.01
    )
    plain = torch.cat([places, torch.ones(9, 1)], 1)
    solution = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    for rows in (Rows(spread), Rows(spread, bound=True)):
        x = rows.of(places)
        torch.testing.assert_close(plain @ (solution / rows.by[:, None]), x @ solution)
        assert float(x[0, -1]) == pytest.approx(rows.constant)


@pytest.mark.parametrize("as_long", [True, False])
def test_bytes_with_one_scale_are_off_by_half_a_step(as_long):
    rows, labels = _examples(n=200)
    sums = Sums.of(rows, labels, 3)
    most = max(float(sums.squares.abs().max()) * SENSITIVITY, float(sums.products.abs().max()))
    roots = torch.full((10,), most**0.5, dtype=torch.float64)
    read = decoded(coded(sums, roots, both=True, as_long=as_long), roots, 3, as_long=as_long)
    assert float((read.squares - sums.squares).abs().max()) <= most / 127 * 0.5001
    assert float((read.products - sums.products).abs().max()) <= most / 127 * 0.5001


@pytest.mark.parametrize("both", [True, False])
def test_sums_in_bytes_are_off_by_half_a_step_of_their_correlations(both):
    rows, labels = _examples(n=200)
    rows = rows * torch.logspace(-3, 3, 7)
    rows[:, -1] = 1
    sums = Sums.of(rows, labels, 3)
    roots = own_roots(sums, both=both)
    read = decoded(coded(sums, roots, both=both), roots, 3)
    apart = (read.products - sums.products).abs() / roots[:7, None] / roots[7:]
    assert float(apart.max()) <= 0.51 / 127 + 2e-3
    if both:
        apart = (read.squares - sums.squares).abs() / roots[:7, None] / roots[:7]
        assert float(apart.max()) <= 0.51 / 127 + 2e-3
    else:
        assert not bool(read.squares.any())


def test_the_error_of_bytes_is_about_as_long_as_is_said():
    draws = torch.Generator().manual_seed(12)
    rows = torch.randn(3000, 60, generator=draws, dtype=torch.float64)
    labels = torch.randint(3, (3000,), generator=draws)
    exact, read = (
        Sums(torch.zeros(60, 60).double(), torch.zeros(60, 3).double()) for _ in range(2)
    )
    for part in torch.arange(3000).split([2000, 500, 500]):
        sums = Sums.of(rows[part], labels[part], 3)
        roots = own_roots(sums, both=True)
        exact = exact + sums
        read = read + decoded(coded(sums, roots, both=True), roots, 3)
    by = exact.squares.diagonal().sqrt()
    apart = torch.linalg.eigvalsh((read.squares - exact.squares) / by[:, None] / by).abs().max()
    assert float(apart) == pytest.approx(coding_error(torch.tensor([4, 1, 1]) / 6, 60), rel=0.3)


def test_a_class_that_is_not_there_travels_as_zeros():
    rows, labels = _examples(n=40)
    sums = Sums.of(rows[labels < 2], labels[labels < 2], 3)
    roots = own_roots(sums, both=True)
    assert not bool(decoded(coded(sums, roots, both=True), roots, 3).products[:, 2].any())


def test_the_nearest_positive_matrix_drops_what_is_negative():
    vectors = torch.linalg.qr(
        torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    )[0]
    values = torch.tensor([3.0, 1.0, 0.5, -0.2, -2.0], dtype=torch.float64)
    found = positive((vectors * values) @ vectors.mT)
    torch.testing.assert_close(found, (vectors * values.clamp_min(0)) @ vectors.mT)


def test_the_noise_in_a_matrix_is_about_as_long_as_the_penalty():
    d, sigma = 120, 1.5
    noise = sigma * torch.randn(
        d * (d + 1) // 2, dtype=torch.float64, generator=torch.Generator().manual_seed(9)
    )
    length = float(torch.linalg.eigvalsh(square(noise, d, as_long=True)).abs().max())
    assert length == pytest.approx(penalty_of_noise(sigma, d), rel=0.1)


def test_class_sums_with_the_true_covariance_are_both_sums():
    rows, labels = _examples(n=500)
    sums = Sums.of(rows, labels, 3)
    means = torch.stack([rows[labels == c].mean(0) for c in range(3)])
    apart = rows - means[labels]
    covariance = within(sums, 1.0)
    torch.testing.assert_close(covariance, apart.mT @ apart / 500)
    torch.testing.assert_close(
        with_covariance(sums.products, covariance, 1.0).squares, sums.squares
    )


def test_joining_without_others_is_the_public_solution_and_with_exact_ones_it_is_better():
    draws = torch.Generator().manual_seed(10)
    truth = torch.randn(6, 3, generator=draws, dtype=torch.float64)

    def drawn(n):
        x = torch.cat(
            [torch.randn(n, 5, generator=draws, dtype=torch.float64), torch.ones(n, 1)], 1
        )
        noise = 2 * torch.randn(n, 3, generator=draws, dtype=torch.float64)
        return x, (x @ truth + noise).argmax(1)

    public_x, public_y = drawn(60)
    many_x, many_y = drawn(5000)
    test_x, test_y = drawn(5000)
    public = Sums.of(public_x, public_y, 3)
    curve = Curve.of(public, 60)
    alone = public.solved(curve.least())
    nobody = joined(public, torch.zeros(6, 3, dtype=torch.float64), 1e-9, 1.0)
    torch.testing.assert_close(nobody, alone, rtol=1e-4, atol=1e-6)
    others = joined(public, Sums.of(many_x, many_y, 3).products, 5000, 5.0)

    def right(solution):
        return float(((test_x @ solution).argmax(1) == test_y).double().mean())

    assert right(others) > right(alone) + 0.01
    drowned = joined(public, Sums.of(many_x, many_y, 3).products, 5000, 1e6)
    torch.testing.assert_close(drowned, alone, rtol=1e-2, atol=1e-3)
