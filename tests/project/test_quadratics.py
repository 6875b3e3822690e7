"""Fedssyn's theory on its least squares: Lemma 1 where it is exact and where it is not, and the rounds saved."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quadratics import LeastSquares, exchanged, federated_averaging, quadratics, rounds_to
from seeds import rng
from torch import Tensor

from synth.dissimilarity import distribution_shift, gradient_dissimilarity

TARGET = 1.1e-6
START = torch.ones(25, dtype=torch.float64)


def paper(seed: int = 0, zeta: float = 100, sigma: float = 0) -> LeastSquares:
    return quadratics(rng(seed), dissimilarity=zeta, noise=sigma)


def noise(problem: LeastSquares, x: Tensor) -> Tensor:
    """Return sigma^2, the mean over clients, written out."""
    gradients = problem.example_gradients(x)
    return (gradients - gradients.mean(1, keepdim=True)).square().sum(2).mean()


def dissimilarity(problem: LeastSquares, x: Tensor) -> Tensor:
    return gradient_dissimilarity(problem.gradients(x))


# --- the problem ---


def test_the_pairs_are_drawn_as_they_are_said_to_be() -> None:
    """b_ij around mu_i spreads by sigma/(i d), mu_i around 0 by zeta/(i d): 4 standard errors of 100,000 values."""
    found = quadratics(rng(), dissimilarity=9, noise=4, clients=5, pairs=2000, dimension=50)
    i = torch.arange(1.0, 6.0, dtype=torch.float64)
    assert torch.equal(found.factors, i[:, None].expand(5, 2000))
    mu = found.targets.mean(1, keepdim=True)
    spread = (found.targets - mu).square().mean((1, 2)).sqrt() * i * 50
    torch.testing.assert_close(spread, torch.full_like(i, 2), rtol=0.01, atol=0)
    many = quadratics(rng(), dissimilarity=9, noise=0, clients=2, pairs=1, dimension=50_000)
    spread = many.targets.square().mean((1, 2)).sqrt() * i[:2] * 50_000
    torch.testing.assert_close(spread, torch.full_like(i[:2], 3), rtol=0.013, atol=0)


def test_gradients_against_autograd_on_the_written_out_objective() -> None:
    problem = exchanged(paper(sigma=1000), 0.3, rng(1))
    x = torch.randn(25, dtype=torch.float64, generator=rng(2)).requires_grad_()
    for i in (0, 9):
        pairs = zip(problem.factors[i].tolist(), problem.targets[i], strict=True)
        f = sum((a * torch.eye(25, dtype=torch.float64) @ x - b).square().sum() for a, b in pairs)
        (expected,) = torch.autograd.grad(f / 200, x)
        with torch.no_grad():
            torch.testing.assert_close(problem.gradients(x)[i], expected, rtol=1e-9, atol=1e-12)
            each = problem.example_gradients(x)[i]
            torch.testing.assert_close(each.mean(0), expected, rtol=1e-9, atol=1e-12)
    at_minimum = problem.gradients(problem.minimiser).mean(0)
    assert float(at_minimum.abs().max()) < 1e-12


@pytest.mark.extended
@settings(deadline=None, max_examples=25)  # a busy machine is no failure
@given(st.integers(1, 6), st.integers(1, 12), st.floats(0, 1), st.integers(0, 99))
def test_an_exchange_keeps_all_pairs_and_the_counts(
    n: int, pairs: int, p: float, seed: int
) -> None:
    before = LeastSquares(
        torch.arange(n, dtype=torch.float64)[:, None].expand(n, pairs),
        torch.arange(n * pairs, dtype=torch.float64).view(n, pairs, 1),
    )
    after = exchanged(before, p, rng(seed))
    assert after.factors.shape == (n, pairs)
    numbers = after.targets.flatten().long()
    assert numbers.sort().values.tolist() == list(range(n * pairs))
    assert torch.equal(after.factors.flatten().long(), numbers // pairs)  # a pair stays together
    stayed = (after.factors == before.factors).sum(1)
    assert bool((stayed >= pairs - round(p * pairs)).all())


# --- Lemma 1 ---


def with_shared(problem: LeastSquares, shared: LeastSquares) -> LeastSquares:
    """Give every client the same pairs beside its own: (1-p) f_i + p f~ with p = n~ / (n_i + n~)."""
    n = len(problem.factors)
    return LeastSquares(
        torch.cat([problem.factors, shared.factors.flatten().expand(n, -1)], 1),
        torch.cat([problem.targets, shared.targets.flatten(0, 1).expand(n, -1, -1)], 1),
    )


@pytest.mark.parametrize(("own", "more"), [(100, 4), (100, 20), (100, 60)])
@pytest.mark.parametrize("seed", range(3))
def test_with_one_shared_objective_lemma_1_is_an_equality(own: int, more: int, seed: int) -> None:
    """All three parts, at any x; D~ is 5 clients of another draw, off D, so that delta counts."""
    problem = paper(seed, sigma=1000)
    shared = quadratics(rng(7), dissimilarity=400, noise=90, clients=5, pairs=more)
    p = 5 * more / (own + 5 * more)
    mixed = with_shared(problem, shared)
    x = torch.randn(25, dtype=torch.float64, generator=rng(seed + 5))
    zeta, sigma = dissimilarity(problem, x), noise(problem, x)
    there = shared.example_gradients(x).flatten(0, 1)
    delta = distribution_shift(problem.gradients(x), there)
    sigma_there = (there - there.mean(0)).square().sum(1).mean()
    assert float(delta) > 0.1 * float(zeta)

    expected = (1 - p) ** 2 * zeta
    torch.testing.assert_close(dissimilarity(mixed, x), expected, rtol=1e-9, atol=0)
    bound = (1 - p) * sigma + p * sigma_there + p * (1 - p) * (zeta + delta)
    torch.testing.assert_close(noise(mixed, x), bound, rtol=1e-9, atol=0)
    largest = (1 - p) * problem.smoothness.max() + p * shared.smoothness.mean()
    torch.testing.assert_close(mixed.smoothness.max(), largest, rtol=1e-9, atol=0)


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0])
def test_with_exchanged_pairs_the_dissimilarity_stays_above_the_lemmas_by_a_known_amount(
    p: float,
) -> None:
    """E zeta_p^2 / zeta^2 = (1-p)^2 + p^2 (n-1)/(n k - 1), k = p n_i, where a client's pairs are alike (sigma = 0).

    A client's mean is (1-p) of its own gradient and p of the mean of k draws without replacement from the pool of
    n k, whose variance is zeta^2/k times (n k - k)/(n k - 1). The mean of 200 draws is held to 5 standard errors.
    """
    problem, x, n, k = paper(), START, 10, round(p * 100)
    before = dissimilarity(problem, x)
    drawn = [dissimilarity(exchanged(problem, p, rng(seed)), x) / before for seed in range(200)]
    ratios = torch.stack(drawn)
    expected = (1 - p) ** 2 + p**2 * (n - 1) / (n * k - 1)
    error = float(ratios.std()) / math.sqrt(200)
    assert float(ratios.mean()) == pytest.approx(expected, abs=5 * error)
    assert float(ratios.min()) > 0  # not even at p = 1, where the lemma has 0
    if p == 0.5:
        assert 0.18 < float(ratios.min()) < 0.25 < float(ratios.max()) < 0.34


@pytest.mark.parametrize("sigma", [0, 1000])
@pytest.mark.parametrize("p", [0.1, 0.5, 1.0])
def test_with_exchanged_pairs_the_noise_keeps_the_bound(p: float, sigma: float) -> None:
    """What the dissimilarity loses the noise gains: sigma_p^2 + zeta_p^2 is that of all pairs, in every draw.

    D~ = D here, so delta = 0 and sigma~_avg^2 = sigma^2 + zeta^2.
    """
    problem, x = paper(sigma=sigma), START
    zeta, was = dissimilarity(problem, x), noise(problem, x)
    total, drawn = was + zeta, []
    for seed in range(60):
        after = exchanged(problem, p, rng(seed))
        drawn.append(noise(after, x))
        torch.testing.assert_close(drawn[-1] + dissimilarity(after, x), total, rtol=1e-9, atol=0)
    found = torch.stack(drawn)
    bound = (1 - p) * was + p * total + p * (1 - p) * zeta
    assert float(found.mean()) < float(bound + 4 * found.std() / math.sqrt(60))


def test_with_exchanged_pairs_the_smoothness_goes_beyond_the_bound() -> None:
    """A mean of largest values is no largest mean: at p = 1 the lemma has L_avg = 38.5, which no draw reaches.

    While one client is the largest in every draw, as at p = 0.1, the lemma's is the mean.
    """
    problem = paper()
    assert problem.smoothness.tolist() == [i * i for i in range(1, 11)]

    def largest(p: float) -> Tensor:
        return torch.stack([exchanged(problem, p, rng(s)).smoothness.max() for s in range(200)])

    few, all_of_them = largest(0.1), largest(1.0)
    error = float(few.std()) / math.sqrt(200)
    assert float(few.mean()) == pytest.approx(0.9 * 100 + 0.1 * 38.5, abs=5 * error)
    assert float(all_of_them.min()) > 38.5


# --- rounds ---


def closed_form(problem: LeastSquares, start: Tensor, eta: float, tau: int, rounds: int) -> Tensor:
    """Return ||x_r - x*||^2 for r = 0..rounds: tau whole gradient steps leave (1 - eta L_i)^tau of x - x*_i."""
    curvature = problem.factors.square().mean(1)
    own = (problem.factors[..., None] * problem.targets).mean(1) / curvature[:, None]
    best = (curvature[:, None] * own).sum(0) / curvature.sum()
    left = (1 - eta * curvature) ** tau
    rest = ((1 - left)[:, None] * own).mean(0) / (1 - left.mean())  # where the rounds lead
    r = torch.arange(rounds + 1, dtype=torch.float64)[:, None]
    return (rest + left.mean() ** r * (start - rest) - best).square().sum(1)


@pytest.mark.parametrize("tau", [1, 10])
def test_federated_averaging_against_its_closed_form(tau: int) -> None:
    problem = exchanged(paper(), 0.25, rng(1))
    etas = torch.tensor([1e-4, 1e-3, 5e-3], dtype=torch.float64)
    found = federated_averaging(problem, START, etas, tau=tau, rounds=30)
    for column, eta in zip(found.T, etas.tolist(), strict=True):
        torch.testing.assert_close(
            column, closed_form(problem, START, eta, tau, 30), rtol=1e-9, atol=1e-15
        )


def test_stochastic_steps_come_from_the_generator_and_are_right_on_average() -> None:
    """Of linear steps the mean is the whole gradient's: 4,000 runs of one round, to 5 standard errors."""
    problem = exchanged(paper(), 0.5, rng(1))
    etas = torch.full((4000,), 1e-3, dtype=torch.float64)

    def run(seed: int) -> Tensor:
        return federated_averaging(problem, START, etas, tau=3, rounds=1, generator=rng(seed))

    found = run(2)
    assert torch.equal(found, run(2))
    assert not torch.equal(found, run(3))
    # ||x - x*||^2 exceeds the closed form by the variance alone, which is small beside the distance here.
    error = float(found[1].std()) / math.sqrt(4000)
    expected = float(closed_form(problem, START, 1e-3, 3, 1)[1])
    assert float(found[1].mean()) == pytest.approx(expected, abs=5 * error + 1e-5)


@pytest.mark.extended
def test_exchanging_saves_more_than_its_share_of_the_rounds() -> None:
    """Figure 2 (b): R_p < (1-p) R_0, with the step size tuned for each p; by what L_p and zeta_p promise, and more.

    The drift's first order is eta (tau-1)/2 sum_i (L_i - L_avg) grad f_i(x*) / sum_i L_i, and an exchange shrinks both
    factors by 1-p: the rounds go with (1-p)^2, where the paper's bound has (1-p) sqrt(L_p / L_0).
    """
    problem, p = paper(zeta=1000), torch.tensor([0.0, 0.1, 0.25, 0.5, 0.75], dtype=torch.float64)
    etas = torch.logspace(-4.5, -2.5, 60, dtype=torch.float64)
    found = []
    for share in p.tolist():
        after = exchanged(problem, share, rng(1))
        errors = federated_averaging(after, START, etas, tau=10, rounds=300)
        found.append(rounds_to(errors, TARGET).min())
    saved = torch.stack(found) / found[0]
    assert bool(saved[1:].lt(1 - p[1:]).all())
    promised = (1 - p) * torch.sqrt((1 - p) + p * 38.5 / 100)
    assert bool(saved[1:].lt(promised[1:]).all())
    torch.testing.assert_close(saved[:4], (1 - p[:4]).square(), rtol=0.15, atol=0)


@pytest.mark.extended
def test_noise_leaves_less_for_an_exchange_to_gain() -> None:
    """Figure 2 (a): at one step size the error that stays falls by a larger factor without noise than with it."""
    eta = torch.full((16,), 1e-3, dtype=torch.float64)

    def stays(sigma: float, p: float) -> float:
        problem = exchanged(paper(sigma=sigma), p, rng(1))
        errors = federated_averaging(problem, START, eta, tau=10, rounds=100, generator=rng(2))
        return float(errors[60:].mean())

    gains = [stays(sigma, 0.0) / stays(sigma, 0.5) for sigma in (0, 1000)]
    assert gains[0] > 2 > 1.5 > gains[1] > 1
