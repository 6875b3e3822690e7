"""The samplers, with the exact eps of known distributions in the place of a network."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from seeds import rng
from torch import Tensor

from synth.diffusion import SAMPLERS, Schedule, labels_like, sample
from synth.unet import UNet


@dataclass(frozen=True)
class Mixture:
    """sum_k p_k N(m_k, s_k^2), independently in each pixel; class 1 has it mirrored, at -m_k.

    x_t is then a mixture of N(sqrt(alpha_bar) m_k, V_k), V_k = alpha_bar s_k^2 + 1 - alpha_bar, and E[eps | x_t]
    is -sqrt(1 - alpha_bar) times the slope of its log density.
    """

    schedule: Schedule
    p: tuple[float, ...]
    m: tuple[float, ...]
    s: tuple[float, ...]

    def __call__(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        left = self.schedule.alpha_bar[t].view(-1, 1, 1, 1, 1)
        p, m, s = (torch.tensor(v, dtype=torch.float64) for v in (self.p, self.m, self.s))
        sign = (1 - 2 * y).view(-1, 1, 1, 1, 1)
        off = x[..., None] - left.sqrt() * m * sign
        variance = left * s.square() + 1 - left
        share = torch.softmax(p.log() - 0.5 * variance.log() - 0.5 * off.square() / variance, -1)
        return (1 - left[..., 0]).sqrt() * (share * off / variance).sum(-1)


def gaussian(schedule: Schedule, m: float, s: float) -> Mixture:
    return Mixture(schedule, (1.0,), (m,), (s,))


def drawn(model: Mixture, n: int, sampler: str, steps: int, seed: int = 0, y: int = 0) -> Tensor:
    """Return n numbers, float64 [n]."""
    labels = torch.full((n,), y)
    options = {"sampler": sampler, "steps": steps, "batch": 1 << 20, "clip": False}
    x = sample(model, model.schedule, labels, (1, 1, 1), rng(seed), dtype=torch.float64, **options)  # type: ignore[arg-type]
    return x.flatten()


def chain(schedule: Schedule, chosen: int, m: float, s: float) -> tuple[float, float]:
    """Return mean and variance of the ancestral chain of N(m, s^2): every step is linear, from x_T ~ N(0, 1).

    E[x_0 | x_t] = m + slope (x_t - sqrt(alpha_bar_t) m), and q(x_s | x_t, x_0) of Ho et al.'s Eq. 7 has the mean
    a x_0 + b x_t. The time steps are even where T - 1 is a multiple of chosen - 1.
    """
    left, last = schedule.alpha_bar.tolist(), schedule.steps
    assert (last - 1) % (chosen - 1) == 0
    times = [*range(last, 0, -((last - 1) // (chosen - 1))), 0]
    mean, variance = 0.0, 1.0
    for t, after in pairwise(times):
        beta = 1 - left[t] / left[after]
        a = math.sqrt(left[after]) * beta / (1 - left[t])
        b = math.sqrt(1 - beta) * (1 - left[after]) / (1 - left[t])
        slope = s**2 * math.sqrt(left[t]) / (left[t] * s**2 + 1 - left[t])
        mean = a * (m + slope * (mean - math.sqrt(left[t]) * m)) + b * mean
        variance = (a * slope + b) ** 2 * variance + beta * (1 - left[after]) / (1 - left[t])
    return mean, variance


@pytest.mark.sweep
@pytest.mark.parametrize("chosen", [201, 51, 11])
def test_ancestral_sampling_of_a_gaussian_has_the_chains_own_moments(chosen: int) -> None:
    """Mean and variance within five standard errors; the mean is the data's, the variance less by the steps' length."""
    schedule, m, s, n = Schedule.linear(201), 0.4, 0.5, 100_000
    mean, variance = chain(schedule, chosen, m, s)
    x = drawn(gaussian(schedule, m, s), n, "ancestral", chosen)
    assert float(x.mean()) == pytest.approx(mean, abs=5 * math.sqrt(variance / n))
    assert float(x.var()) == pytest.approx(variance, abs=5 * variance * math.sqrt(2 / n))
    assert mean == pytest.approx(m, abs=0.02)


def exact_flow(schedule: Schedule, m: float, s: float, x: Tensor) -> Tensor:
    """Return where the probability flow leads x_T: (x_t - sqrt(alpha_bar_t) m) / sqrt(V_t) stays what it is.

    It ends at t = 1, from where a solver's last step is to E[x_0 | x_1].
    """
    left = schedule.alpha_bar.tolist()
    first, last = left[1], left[-1]
    start, end = (a * s**2 + 1 - a for a in (last, first))
    x1 = math.sqrt(first) * m + math.sqrt(end / start) * (x - math.sqrt(last) * m)
    return m + s**2 * math.sqrt(first) / end * (x1 - math.sqrt(first) * m)


@pytest.mark.parametrize(("sampler", "order"), [("ddim", 1), ("second-order", 2)])
def test_a_deterministic_samplers_error_falls_by_its_order(sampler: str, order: int) -> None:
    """Twice the steps: half the error of DDIM, a quarter of the second-order solver's; to the exact flow.

    T - 1 is 512^2, so that the quadratic grids of up to 512 steps lie in each other without rounding.
    """
    schedule, m, s = Schedule.linear(512**2 + 1), 0.4, 0.5
    start = torch.randn(50, 1, 1, 1, generator=rng(), dtype=torch.float64).flatten()
    exact = exact_flow(schedule, m, s, start)
    errors = [
        float((drawn(gaussian(schedule, m, s), 50, sampler, steps + 1) - exact).abs().max())
        for steps in (64, 128, 256, 512)
    ]
    first, second, third = (a / b for a, b in pairwise(errors))
    assert first > second > third or order == 1  # the second-order ones come from above
    assert second == pytest.approx(2**order, rel=0.1)
    assert third == pytest.approx(2**order, rel=0.05)


MIXTURE = ((0.3, 0.7), (-0.5, 0.6), (0.1, 0.2))


@pytest.mark.extended
@pytest.mark.parametrize(("name", "y"), [("linear", 1), ("cosine", 0)])
@pytest.mark.parametrize(("sampler", "steps"), [("ancestral", 334), ("ddim", 250)])
def test_the_mixture_of_the_class_is_drawn(sampler: str, steps: int, name: str, y: int) -> None:
    """Weights, means and deviations of the parts, which lie apart, within five standard errors and a little.

    The little, 0.003, 0.005 and 2 %, is for the steps' length. An ancestral part's deviation is that of its own
    Gaussian chain: at 334 steps of the linear schedule 0.093, not 0.1.
    """
    n, schedule = 20_000, getattr(Schedule, name)(1000)
    x = drawn(Mixture(schedule, *MIXTURE), n, sampler, steps, y=y) * (1 - 2 * y)
    for part, p, m, s in zip((x < 0, x > 0), *MIXTURE, strict=True):
        inside, of_it = x[part], n * p
        assert len(inside) / n == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / n) + 0.003)
        assert float(inside.mean()) == pytest.approx(m, abs=5 * s / math.sqrt(of_it) + 0.005)
        deviation = chain(schedule, steps, m, s)[1] ** 0.5 if sampler == "ancestral" else s
        error = 5 / math.sqrt(2 * of_it) + 0.02
        assert float(inside.std()) == pytest.approx(deviation, rel=error)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["linear", "cosine"])
@pytest.mark.parametrize(("sampler", "steps"), [("ddim", 100), ("second-order", 25)])
def test_few_steps_lead_close_to_where_a_thousand_do(sampler: str, steps: int, name: str) -> None:
    """From the same start noise, 0.006 apart in the mean: a fraction of the narrowest part's deviation of 0.1."""
    model = Mixture(getattr(Schedule, name)(1000), *MIXTURE)
    gap = drawn(model, 2000, sampler, steps) - drawn(model, 2000, "ddim", 1000)
    assert float(gap.abs().mean()) < 0.006


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_size_of_the_chunks_changes_nothing(sampler: str) -> None:
    model = Mixture(Schedule.cosine(50), *MIXTURE)
    labels = torch.arange(7) % 2

    def images(batch: int) -> Tensor:
        return sample(
            model, model.schedule, labels, (2, 3, 4), rng(1), sampler=sampler, steps=9, batch=batch
        )

    whole = images(7)
    assert whole.shape == (7, 2, 3, 4)
    assert all(torch.equal(images(batch), whole) for batch in (1, 2, 6, 100))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_networks_images_are_the_same_in_chunks_but_for_rounding(sampler: str) -> None:
    sizes = {"width": 4, "multipliers": (1, 2), "blocks": 1, "attention": (1,)}
    model = UNet((1, 4, 4), 2, rng(), **sizes).double()  # type: ignore[arg-type]
    with torch.no_grad():
        model.last.weight.normal_(generator=rng(2))
    options = {"sampler": sampler, "steps": 5, "dtype": torch.float64}
    untouched = torch.get_rng_state()
    one, two = (
        sample(
            model,
            Schedule.cosine(50),
            torch.tensor([0, 1, 1, 1, 0]),
            (1, 4, 4),
            rng(1),
            batch=size,
            **options,  # type: ignore[arg-type]
        )
        for size in (5, 2)
    )
    torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)
    assert torch.equal(torch.get_rng_state(), untouched)
    assert len(torch.unique(one.flatten(1), dim=0)) == 5  # each from start noise of its own


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_clipped_images_stay_in_the_datas_range_whatever_the_model_says(sampler: str) -> None:
    def nonsense(x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return 3 * torch.ones_like(x)

    given = (nonsense, Schedule.cosine(100), torch.zeros(4).long(), (1, 2, 2))
    clipped = sample(*given, rng(), sampler=sampler, steps=10)
    free = sample(*given, rng(), sampler=sampler, steps=10, clip=False)
    assert float(clipped.abs().max()) <= 1
    assert float(free.abs().max()) > 10


@given(st.sampled_from(sorted(SAMPLERS)), st.integers(1, 120), st.integers(1, 120))
@settings(max_examples=40, deadline=None)
def test_a_path_falls_from_the_last_time_step_in_so_many_steps(
    sampler: str, last: int, steps: int
) -> None:
    seen = []

    def model(x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        seen.extend(t.unique().tolist())
        return torch.zeros_like(x)

    given = (model, Schedule.cosine(last), torch.zeros(2).long(), (1, 1, 1), rng())
    assume(steps <= last)
    sample(*given, sampler=sampler, steps=steps)
    assert len(seen) == steps
    assert seen[0] == last
    assert all(t > s for t, s in zip(seen, [*seen[1:], 0], strict=True))
    assert steps == 1 or seen[-1] == 1


def test_images_can_be_trained_on() -> None:
    """What inference mode makes may not enter a gradient; the images may."""
    model = gaussian(Schedule.cosine(20), 0, 1)
    for sampler in SAMPLERS:
        x = sample(model, model.schedule, torch.zeros(2).long(), (1, 1, 1), rng(), sampler=sampler)
        w = torch.ones(1, requires_grad=True)
        (w * x).sum().backward()  # type: ignore[no-untyped-call]
        assert w.grad is not None


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(0, 60), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_so_many_labels_each_class_within_one_of_its_share(
    given_labels: list[int], n: int, seed: int
) -> None:
    labels = labels_like(torch.tensor(given_labels), n, rng(seed)).tolist()
    assert len(labels) == n
    assert labels == sorted(labels)
    counts, wanted = Counter(labels), Counter(given_labels)
    assert set(counts) <= set(wanted)
    for c, count in wanted.items():
        assert abs(counts[c] - n * count / len(given_labels)) < 1


def test_a_rare_class_gets_its_share_in_the_mean() -> None:
    """One of 8 labels, 2 drawn: 0 or 1 of them, 1/4 in the mean, within five standard errors of 2,000 draws."""
    labels = torch.tensor([0, 0, 0, 1, 2, 2, 2, 2])
    draw = rng()
    found = [int((labels_like(labels, 2, draw) == 1).sum()) for _ in range(2000)]
    assert set(found) == {0, 1}
    assert sum(found) / 2000 == pytest.approx(0.25, abs=5 * math.sqrt(0.25 * 0.75 / 2000))
