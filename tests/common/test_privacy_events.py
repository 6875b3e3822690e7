"""Events: Poisson samples held against closed forms and Opacus, adjacencies, disjoint parts, what is written."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from exact_epsilon import gaussian, one_sample, two_samples

from common.privacy.accounting import epsilon
from common.privacy.events import Event, parallel
from common.privacy.ledger import LedgerTip, PrivacyReport

DELTA = 1e-5


def cost(*events: Event, delta: float = DELTA) -> float:
    return epsilon(events, delta).value


# ---- Poisson samples ----------------------------------------------------------------------------------


def test_the_closed_form_of_one_sample_by_hand() -> None:
    """Rate 1 is the Gaussian; at rate q and eps = log(1 + q (e - 1)), delta is q times that of the Gaussian at 1."""
    assert one_sample(1.0, 1.0, 0.126937) == pytest.approx(1.0, abs=1e-4)
    amplified = math.log(1 + 0.1 * (math.e - 1))
    assert one_sample(1.0, 0.1, 0.0126937) == pytest.approx(amplified, abs=1e-4)


@pytest.mark.parametrize("delta", [1e-8, 1e-5, 1e-3])
@pytest.mark.parametrize("rate", [0.003, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("s", [0.4, 1.0, 4.0, 20.0])
def test_one_sample_costs_no_less_than_the_closed_form(s: float, rate: float, delta: float) -> None:
    truth, found = one_sample(s, rate, delta), epsilon([Event("a", s, rate)], delta)
    assert truth <= found.prv
    assert truth <= found.rdp
    assert found.value <= 1.03 * truth + found.rdp / 100 + 1e-3


@pytest.mark.extended
@pytest.mark.parametrize(("s", "rates"), [(0.7, (0.05, 0.6)), (5.0, (0.2, 0.2))])
def test_two_samples_cost_no_less_than_the_integral(s: float, rates: tuple[float, float]) -> None:
    truth = two_samples(s, rates, DELTA)
    found = epsilon([Event("a", s, rates[0]), Event("b", s, rates[1])], DELTA)
    assert truth <= found.value <= found.rdp
    assert found.value <= 1.03 * truth + 0.01


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("s", "rate", "steps"),
    [(1.1, 0.01, 1000), (0.8, 0.2, 30), (6.0, 0.05, 5000), (1.0, 1.0, 10), (5.0, 1.0, 300)],
)
def test_steps_cost_what_opacus_says(s: float, rate: float, steps: int) -> None:
    from opacus.accountants import PRVAccountant, RDPAccountant

    found = epsilon([Event("a", s, rate, steps)], DELTA)
    for accountant, ours in ((RDPAccountant(), found.rdp), (PRVAccountant(), found.prv)):
        accountant.history = [(s, rate, steps)]
        theirs = accountant.get_epsilon(DELTA)
        assert ours == pytest.approx(theirs, rel=0.011, abs=0.011)
    assert found.value == found.prv <= found.rdp


def test_samples_beside_releases_of_all_the_data() -> None:
    """Together they cost more than either and less than the sum; in another order, or in parts, the same."""
    sampled, whole = Event("a", 1.2, 0.05, 200), Event("b", 6.0, steps=3)
    both = cost(sampled, whole)
    assert max(cost(sampled), cost(whole)) < both < cost(sampled) + cost(whole)
    parts = [Event("b", 6.0), Event("a", 1.2, 0.05, 150), Event("b", 6.0, steps=2)]
    assert cost(*parts, Event("c", 1.2, 0.05, 50)) == both


def test_what_costs_nothing_and_what_has_no_bound() -> None:
    free = [Event("a", 1.0, 0.0, 9), Event("a", 1.0, 0.5, 0), Event("a", 0.0, 1.0, 0)]
    assert cost(*free) == cost(Event("a", math.inf, 0.5, 9)) == cost() == 0.0
    assert cost(Event("a", 0.0, 0.5)) == cost(Event("a", 1e-200, 0.01)) == math.inf
    assert cost(Event("a", 2.0), Event("b", 0.0, 0.1)) == math.inf


def test_steps_beyond_what_a_grid_can_hold_are_still_bounded() -> None:
    found = epsilon([Event("a", 1e4, 1e-3, 10**9)], DELTA)
    assert found.prv == math.inf
    assert 0 < found.rdp < 1


# ---- the two adjacencies ------------------------------------------------------------------------------


@pytest.mark.parametrize("s", [0.7, 3.0, 30.0])
def test_an_exchange_under_add_remove_counts_as_two(s: float) -> None:
    event = Event("means", s, adjacency="replace-one")
    assert event.converted_to("add-remove") == Event("means", s, steps=2)
    truth = gaussian(s, DELTA)
    assert truth < gaussian(s / math.sqrt(2), DELTA) <= cost(event)
    assert truth <= epsilon([event], DELTA, "replace-one").value <= 1.02 * truth


def test_an_example_that_is_absent_moves_a_mean_by_no_more_than_one_that_is_exchanged() -> None:
    """Codes in [0, 1]^5 and a public divisor: the absent one's place holds a fixed code, here any of these."""
    codes = torch.rand(200, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    corners = torch.tensor([[0.0] * 5, [1.0] * 5], dtype=torch.float64)
    everything, places = torch.cat([codes, corners]), 7
    exchanged = torch.cdist(everything, everything).max() / places
    for fixed in everything[::20]:
        assert (everything - fixed).norm(dim=1).max() / places <= exchanged


@pytest.mark.parametrize("s", [0.7, 3.0, 30.0])
def test_an_exchange_of_what_was_reckoned_by_add_remove_takes_half_the_multiplier(s: float) -> None:
    """A sum clipped to C moves by C when x leaves, by 2 C when -x comes in its place; two events cover sqrt(2) C."""
    event = Event("sum", s)
    found, truth = epsilon([event], DELTA, "replace-one").value, gaussian(s / 2, DELTA)
    assert truth <= found <= 1.02 * truth
    assert cost(event, event) < truth
    assert event.converted_to("replace-one").rho == pytest.approx(4 * event.rho)


def test_an_exchange_among_poisson_samples_is_not_accounted_for() -> None:
    with pytest.raises(ValueError, match="dp-sgd draws Poisson samples"):
        epsilon([Event("dp-sgd", 1.0, 0.1)], DELTA, "replace-one")


# ---- disjoint parts -----------------------------------------------------------------------------------


def test_the_class_with_the_highest_rate_is_what_disjoint_classes_cost() -> None:
    classes = [Event("feature", 2.0, rate, 50) for rate in (0.1, 0.4, 0.05)]
    assert parallel(classes) == classes[1]
    assert cost(parallel(classes)) < cost(*classes)


def test_classes_that_differ_in_several_ways_cost_no_less_than_each() -> None:
    classes = [Event("a", 2.0, 0.1, 50), Event("a", 1.5, 0.02, 80)]
    worst = parallel(classes)
    assert worst == Event("a", 1.5, 0.1, 80)
    assert cost(worst) >= max(map(cost, classes))


@pytest.mark.parametrize(
    "classes",
    [
        [],
        [Event("a", 1.0), Event("b", 1.0)],
        [Event("a", 1.0), Event("a", 1.0, adjacency="replace-one")],
    ],
)
def test_what_does_not_lie_side_by_side(classes: list[Event]) -> None:
    with pytest.raises(ValueError, match="one mechanism and one adjacency"):
        parallel(classes)


# ---- what an event may be, and as it is written -------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (("a", -1.0), "numbers from 0"),
        (("a", math.nan), "numbers from 0"),
        (("a", 1.0, 1.0, -1), "numbers from 0"),
        (("a", 1.0, 1.0, 1.5), "numbers from 0"),
        (("a", 1.0, 1.1), "from 0 to 1"),
        (("a", 1.0, math.nan), "from 0 to 1"),
        (("a", 1.0, 1.0, 1, "both"), "choose add-remove or replace-one"),
        (("", 1.0), "printable"),
        (("a\n", 1.0), "printable"),
    ],
)
def test_what_can_be_no_event(fields: tuple[object, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Event(*fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "event", [Event("dp-sgd", 1.1, 0.05, 300), Event("m", 2, steps=3, adjacency="replace-one")]
)
def test_an_event_is_read_as_it_was_written(event: Event) -> None:
    assert Event.read(json.loads(json.dumps(event.to_dict()))) == event


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        {"mechanism": "a"},
        Event("a", 1.0).to_dict() | {"more": 1},
        Event("a", 1.0).to_dict() | {"noise_multiplier": "1"},
        Event("a", 1.0).to_dict() | {"sample_rate": True},
        Event("a", 1.0).to_dict() | {"steps": 2.0},
        Event("a", 1.0).to_dict() | {"mechanism": 3},
        Event("a", 1.0).to_dict() | {"noise_multiplier": 10**400},
    ],
)
def test_what_is_read_as_no_event(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"event|numbers from 0"):
        Event.read(wrong)


def test_numpys_numbers_are_numbers() -> None:
    assert cost(Event("a", float(np.float32(2)), 0.5)) == cost(Event("a", 2.0, 0.5))


# ---- what a site tells of its charges ----------------------------------------------------------------


TOLD = PrivacyReport((Event("dp-sgd", 1.0, 0.5, 3),), head=LedgerTip())


def test_what_was_written_is_read() -> None:
    assert PrivacyReport.read(TOLD.to_config()) == TOLD


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 10**400, -1, "1", None])
def test_noise_that_is_no_finite_number_is_refused(number: Any) -> None:
    """An infinite multiplier would stand in the record, where JSON has no such number."""
    event = Event("dp-sgd", 1.0).to_dict() | {"noise_multiplier": number}
    with pytest.raises(ValueError, match=r"noise|not an event"):
        PrivacyReport.read({**TOLD.to_config(), "events": json.dumps([event])})
