"""What the server computes of charges that sites tell it: as much as a round can wait for, whatever they tell."""

from __future__ import annotations

import itertools
import time

import pytest

from common.errors import PayloadError
from common.privacy.accounting import epsilon
from common.privacy.events import Event
from common.privacy.ledger import MOST_EVENTS, PrivacyReport
from server_app import recorder as module
from server_app.recorder import spending_lines
from strategies.exchange.replies import PrivacyBudgetUsage

DELTA = 1e-5


def kinds(count: int, first: int = 1, noise: float = 1.1, steps: int = 10) -> tuple[Event, ...]:
    """Return events of different samples, as a site that lies can make up with the run's own noise."""
    return tuple(Event("dp-sgd", noise, i * 1e-4, steps) for i in range(first, first + count))


def test_a_site_cannot_tell_of_other_events_with_each_reply() -> None:
    spending = PrivacyBudgetUsage()
    spending.take("a", PrivacyReport(kinds(MOST_EVENTS)))
    spending.take("a", PrivacyReport(kinds(MOST_EVENTS)))
    assert len(spending.events["a"]) == MOST_EVENTS
    assert {event.steps for event in spending.events["a"]} == {20}
    known = spending.events["a"]
    with pytest.raises(
        PayloadError, match=r"charged for 65 kinds of events .* where 64 is the most"
    ):
        spending.take("a", PrivacyReport(kinds(1, first=900)))
    assert spending.events["a"] == known
    spending.take("a", PrivacyReport(kinds(1, first=900), complete=True))
    assert spending.events["a"] == kinds(1, first=900)


def test_no_events_hold_a_round_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five sites whose every reply tells of other events, the dearest ones: seconds a round, not minutes a site."""
    asked: list[int] = []

    def counted(events: tuple[Event, ...], delta: float, most_places: int) -> object:
        asked.append(most_places)
        return epsilon(events, delta, most_places=most_places)

    monkeypatch.setattr(module, "epsilon", counted)
    spending, begun = PrivacyBudgetUsage(), time.process_time()
    for server_round, site in itertools.product(range(2), range(5)):
        first = 1 + 1000 * server_round + 100 * site
        events = kinds(MOST_EVENTS if site else 1, first, 4.0, 10**5)
        spending.take(f"site-{site}", PrivacyReport(events, complete=True))
        if site == 4:
            assert all(line["epsilon"] for line in spending_lines(spending, DELTA).values())
    assert len(asked) == 10
    assert sum(asked[:5]) <= module._PLACES
    assert time.process_time() - begun < 60


@pytest.mark.long
@pytest.mark.extended
def test_in_a_crowd_who_tells_of_many_kinds_has_no_epsilon_and_the_others_have_theirs() -> None:
    spending = PrivacyBudgetUsage()
    for i in range(1000):
        spending.take(f"site-{i}", PrivacyReport(kinds(2, first=1 + i)))
    spending.take("site-7", PrivacyReport(kinds(MOST_EVENTS), complete=True))
    lines = spending_lines(spending, DELTA)
    assert {site for site, line in lines.items() if line["epsilon"] is None} == {"site-7"}
    assert spending_lines(spending, DELTA, {"site-7"})["site-7"]["epsilon"] is not None


def test_sites_that_tell_the_same_are_one_computation() -> None:
    """A share is of those that differ: a thousand alike have the epsilon that one alone has."""
    alone, crowd = PrivacyBudgetUsage(), PrivacyBudgetUsage()
    for site in range(1000):
        crowd.take(f"site-{site}", PrivacyReport(kinds(1, first=500)))
    alone.take("site-0", PrivacyReport(kinds(1, first=500)))
    found = {line["epsilon"] for line in spending_lines(crowd, DELTA).values()}
    assert found == {spending_lines(alone, DELTA)["site-0"]["epsilon"]}
    assert found == {epsilon(kinds(1, first=500), DELTA).value}
