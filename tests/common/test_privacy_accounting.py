"""What releases cost, held against closed forms; how far a mean moves, by brute force."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from exact_epsilon import gaussian
from torch import Tensor

from common.config.privacy_plan import noise_for
from common.privacy.accounting import (
    SAMPLED_ORDERS,
    Epsilon,
    costs_at_most,
    epsilon,
    latent_sensitivity,
    rdp_of_step,
)
from common.privacy.events import Event
from nectar.operate.privacy_plan import rounds_left

DELTA = 1e-5


def exact(s: float, delta: float = DELTA) -> float:
    """Return the epsilon of one Gaussian release."""
    return gaussian(s, delta)


def cost(s: float, releases: int = 1, delta: float = DELTA) -> Epsilon:
    return epsilon([Event("means", s, steps=releases)], delta)


def test_the_closed_form_by_hand() -> None:
    """At s = 1 and eps = 1, delta = Phi(-1/2) - e Phi(-3/2) = 0.30854 - 2.71828 x 0.06681 = 0.12694."""
    assert exact(1.0, 0.126937) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("delta", [1e-8, 1e-5])
@pytest.mark.parametrize("s", [0.3, 0.5, 1.0, 3.0, 10.0, 53.0, 200.0])
def test_one_release_costs_no_less_than_the_closed_form_and_little_more(
    s: float, delta: float
) -> None:
    found, truth = cost(s, delta=delta), exact(s, delta)
    assert truth <= found.prv <= 1.02 * truth
    assert truth <= found.rdp <= 1.2 * truth
    assert found.value == found.prv


@pytest.mark.parametrize(("s", "releases"), [(0.5, 50), (3.0, 7), (20.0, 300), (200.0, 50)])
def test_many_releases_cost_as_one_with_less_noise(s: float, releases: int) -> None:
    """N releases at s are one at s / sqrt(N): the sufficient statistic is their mean."""
    found, truth = cost(s, releases), exact(s / math.sqrt(releases))
    assert truth <= found.value <= 1.02 * truth
    assert truth <= found.rdp <= 1.2 * truth


@pytest.mark.parametrize(("s", "releases"), [(0.5, 280), (0.5, 300), (0.3, 200), (0.01, 3)])
def test_where_exponentials_overflow_it_is_still_a_bound(s: float, releases: int) -> None:
    """For the second the PRV accountant returns 709.8 where the truth is 746.8."""
    found, truth = cost(s, releases), exact(s / math.sqrt(releases))
    assert found.prv == math.inf
    assert truth <= found.value == found.rdp <= 1.1 * truth


@pytest.mark.parametrize("s", [1e3, 1e5, 1e9])
def test_next_to_nothing_is_never_less_than_nothing(s: float) -> None:
    assert 0 <= cost(s).value < 0.01


def test_different_releases_add_up() -> None:
    """1/s^2 = 1/4 + 3/16 + 0 = 7/16."""
    events = [Event("a", 2.0), Event("b", 4.0, steps=3), Event("a", 0.0, steps=0)]
    assert epsilon(events, DELTA).value == pytest.approx(cost(4 / math.sqrt(7)).value)
    assert epsilon(reversed(events), DELTA) == epsilon(events, DELTA)


def test_the_scale_of_the_papers_setting() -> None:
    """m = 100, sigma = 3, alpha = 50, l = 32: rho = alpha l / (2 m^2 sigma^2) = 1600 / 180000.

    The simplest conversion of rho, rho + 2 sqrt(rho ln(1 / delta)), gives 0.65, and 0.09 for one release.
    """
    multiplier = 3 / latent_sensitivity(32, 100)
    for releases, rho, simplest in ((50, 0.0089, 0.65), (1, 0.000178, 0.09)):
        event = Event("means", multiplier, steps=releases)
        assert event.rho == pytest.approx(rho, rel=0.01)
        converted = event.rho + 2 * math.sqrt(event.rho * math.log(1 / DELTA))
        assert converted == pytest.approx(simplest, abs=0.005)
        found, truth = epsilon([event], DELTA), exact(multiplier / math.sqrt(releases))
        assert truth <= found.prv < found.rdp < converted


@pytest.mark.long
@pytest.mark.extended
def test_asking_opacus_leaves_the_log_as_it_was() -> None:
    """Importing it gives the root logger a handler, and each line of a run came twice; so in a process of its own."""
    script = (
        "import logging; from common.privacy.accounting import costs_at_most, epsilon; "
        "from common.privacy.events import Event; "
        "epsilon([Event('a', 1.0)], 1e-5); print(logging.getLogger().handlers)"
    )
    message = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert message.stdout.strip() == "[]"


STEPS = "[Event('dp-sgd', 1.1, 0.02, 500)] * 3, 1e-5"
"""RDP's epsilon of these is 4.41, PRV's 4.07."""


@pytest.mark.extended
@pytest.mark.parametrize(
    ("most", "said"),
    [
        (4.5, "True False"),
        pytest.param(4.2, "True True", marks=pytest.mark.long),
        pytest.param(4.0, "False True", marks=pytest.mark.long),
    ],
)
def test_a_budget_takes_opacus_only_where_rdp_does_not_suffice(most: float, said: str) -> None:
    """Its import takes seconds, and a site's charge is often in a process of its own: so here."""
    script = (
        "import sys; from common.privacy.accounting import costs_at_most, epsilon; "
        "from common.privacy.events import Event; "
        f"print(costs_at_most({most}, {STEPS}), 'opacus' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == said


@pytest.mark.parametrize(
    "events",
    [
        [],
        [Event("a", 0.0)],
        [Event("a", 2.0), Event("b", 3.0, steps=4)],
        [Event("a", 1.1, 0.02, 500), Event("b", 8.0)],
    ],
)
def test_a_budget_is_kept_by_the_smaller_epsilon(events: list[Event]) -> None:
    found = epsilon(events, DELTA)
    for most in (0.5, found.prv * 0.999, found.prv, found.rdp, found.rdp * 1.001, 100.0):
        assert costs_at_most(most, events, DELTA) == (found.value <= most)


@pytest.mark.parametrize("noise", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("rate", [1e-3, 0.1, 0.5, 0.9])
def test_a_steps_rdp_is_opacus_own(noise: float, rate: float) -> None:
    """At all orders to 2e-5 of it, and where the series is cut short never below: what it leaves out is added."""
    from opacus.accountants.analysis.rdp import compute_rdp

    orders = tuple(order for order in SAMPLED_ORDERS if order <= 256)
    theirs = np.array(compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=list(orders)))
    ours = rdp_of_step(noise, rate, orders)
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-9)
    assert bool((ours >= theirs - 1e-9 * (1 + theirs)).all())


@pytest.mark.parametrize("noise", [1e-300, 1e-160, 1e-8, 1e-2, 1e4, 1e6, 1e155, 1e300])
@pytest.mark.parametrize("rate", [1e-300, 1e-12, 0.5, 1 - 1e-12])
def test_any_event_has_an_epsilon_in_as_many_terms(noise: float, rate: float) -> None:
    """Opacus' own sum ends for none of the first: a bound, or infinity, and no less for more steps."""
    rdp = rdp_of_step(noise, rate, SAMPLED_ORDERS)
    assert not np.isnan(rdp).any()
    assert bool((rdp >= 0).all())
    one, many = (epsilon([Event("a", noise, rate, steps)], DELTA).rdp for steps in (1, 10**9))
    assert 0 <= one <= many


def test_no_noise_is_no_privacy_and_no_release_costs_nothing() -> None:
    assert cost(0.0) == Epsilon(math.inf, math.inf)
    assert epsilon([Event("a", 1.0), Event("a", 0.0)], DELTA).value == math.inf
    assert cost(1e-200).value == math.inf
    assert epsilon([], DELTA) == cost(0.0, 0) == cost(math.inf) == Epsilon(0.0, 0.0)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_what_can_be_no_delta(delta: float) -> None:
    with pytest.raises(ValueError, match="above 0 and below 1"):
        epsilon([Event("a", 1.0)], delta)


# ---- sensitivity --------------------------------------------------------------------------------------


def latents(dimension: int) -> Tensor:
    """Return corners of the cube, all or many, and random points, float64 [n, l]."""
    rng = torch.Generator().manual_seed(dimension)
    if dimension <= 5:
        corners = torch.tensor(list(itertools.product((0.0, 1.0), repeat=dimension)))
    else:
        corners = torch.randint(0, 2, (40, dimension), generator=rng).float()
        corners = torch.cat([corners, 1 - corners, torch.eye(dimension)])
    return torch.cat([corners, torch.rand(40, dimension, generator=rng)]).double()


def shortened(z: Tensor, clip: float) -> Tensor:
    """Return the latents, those longer than ``clip`` scaled to it; 0: as they are."""
    norms = z.norm(dim=1, keepdim=True).clamp_min(1e-300)
    return z * (clip / norms).clamp_max(1.0) if clip else z


def farthest(dimension: int, images: int, clip: float) -> float:
    """Return how far the mean moves at the most, over all pairs of neighbouring sets of those latents."""
    z = shortened(latents(dimension), clip)
    others = z[torch.arange(images - 1) % len(z)]
    means = (others.sum(0) + z) / images
    return float(torch.cdist(means, means, compute_mode="donot_use_mm_for_euclid_dist").max())


@pytest.mark.parametrize("clip", [0.0, 0.3, 1.0, 1.5, 2.0, 10.0])
@pytest.mark.parametrize("images", [1, 2, 7])
@pytest.mark.parametrize("dimension", [1, 2, 5, 8, 32])
def test_no_neighbouring_set_moves_the_mean_by_more(
    dimension: int, images: int, clip: float
) -> None:
    bound = latent_sensitivity(dimension, images, clip)
    assert farthest(dimension, images, clip) <= bound * (1 + 1e-12)


@pytest.mark.parametrize(
    ("dimension", "images", "clip"),
    [(1, 3, 0.0), (5, 7, 0.0), (32, 1, 0.0), (2, 3, 1.0), (8, 7, 0.3), (8, 2, 1.5), (5, 2, 10.0)],
)
def test_some_neighbouring_set_moves_it_as_far(dimension: int, images: int, clip: float) -> None:
    bound = latent_sensitivity(dimension, images, clip)
    assert farthest(dimension, images, clip) == pytest.approx(bound)


@pytest.mark.parametrize("wrong", [(0, 1, 0.0), (1, 0, 0.0), (1, 1, -1.0), (1, 1, math.nan)])
def test_what_has_no_sensitivity(wrong: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError, match="at least one of each"):
        latent_sensitivity(*wrong)


#: one kind of event each, for which the PRV accountant's grid alone has some 50 and 100 million places
DEAR = [Event("dp-sgd", 4.0, 1e-4, 10**5), Event("dp-sgd", 50.0, 1e-4, 10**5)]


@pytest.mark.parametrize("event", DEAR, ids=str)
def test_what_would_take_minutes_and_gigabytes_is_bounded_by_rdp(event: Event) -> None:
    found = epsilon([event], DELTA)
    assert found.prv == float("inf")
    assert found.value == found.rdp < 1


# ---- noise for an epsilon, and the rounds that a budget has left -------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize(("rate", "steps"), [(1.0, 1), (1.0, 40), (0.05, 200)])
@pytest.mark.parametrize("target", [0.5, 3.0, 20.0])
def test_the_noise_is_enough_and_hardly_more(target: float, rate: float, steps: int) -> None:
    noise = noise_for(target, DELTA, rate, steps)
    assert epsilon([Event("a", noise, rate, steps)], DELTA).value <= target
    assert epsilon([Event("a", noise * 0.99, rate, steps)], DELTA).value > target


def test_the_noise_of_one_release_is_the_closed_forms() -> None:
    noise = noise_for(1.0, DELTA)
    assert gaussian(noise, DELTA) == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("wrong", [(0.0, 1.0, 1), (1.0, 0.0, 1), (1.0, 1.5, 1), (1.0, 1.0, 0)])
def test_what_no_noise_is_for(wrong: tuple[float, float, int]) -> None:
    with pytest.raises(ValueError, match="give an epsilon above 0"):
        noise_for(wrong[0], DELTA, wrong[1], wrong[2])


def test_no_noise_is_enough_for_next_to_nothing() -> None:
    with pytest.raises(ValueError, match="no noise up to 1e"):
        noise_for(1e-9, 1e-12, steps=10)


def test_the_rounds_that_are_left_fit_and_one_more_does_not() -> None:
    spent, each = [Event("b", 4.0)], Event("a", 2.0, 0.1, 10)
    left = rounds_left(spent, [each], 3.0, DELTA)
    assert left is not None
    assert left > 3
    assert epsilon([*spent, *[each] * left], DELTA).value <= 3.0
    assert epsilon([*spent, *[each] * (left + 1)], DELTA).value > 3.0


def test_a_budget_that_is_spent_and_a_round_that_costs_nothing() -> None:
    assert rounds_left([Event("a", 0.1)], [], 1.0, DELTA) == 0
    assert rounds_left([], [Event("a", 0.1)], 1.0, DELTA) == 0
    assert rounds_left([], [Event("a", 0.0, steps=0)], 1.0, DELTA) is None
    assert rounds_left([], [Event("a", 1e6)], 1.0, DELTA) is None
