"""A registered site that the operator did not count on joins only if the operator says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small import Small

from client_app.app import app as client_app
from common.config.loading import load
from common.division import Division
from common.errors import FederationError
from common.settings.sections import FederationSettings
from common.sites import Site
from nectar.engines.local_grid import LocalGrid
from server_app.app import make_strategy, with_actual_sites
from strategies.base import Strategy
from strategies.exchange.membership import RollCall

pytestmark = pytest.mark.promise(
    "A federation in operation",
    "A registered site joins late only with `federation.newcomers=any`",
)

QUICK = FederationSettings(join_deadline=0.1, round_deadline=5.0)


class Growing(LocalGrid):
    """A federation of which only some nodes are there."""

    here: int = 2

    def get_node_ids(self) -> list[int]:
        """Return the first of the nodes."""
        return super().get_node_ids()[: self.here]


@pytest.fixture
def federation(small: Small, monkeypatch: pytest.MonkeyPatch) -> tuple[Strategy, Growing]:
    """Two sites of their own data that were counted on, and a third that may come."""
    config = small(set="federation.sites=2")
    grid = Growing(client_app, 3, config)
    strategy = make_strategy(Division(load(config)).run)
    strategy.members.sites = [Site("north", 1000, 9), Site("south", 1001, 9)]
    found = {1000: "north", 1001: "south", 1002: "east"}
    monkeypatch.setattr(RollCall, "ask", lambda *_: None)
    monkeypatch.setattr(RollCall, "answer", lambda self, i: Site(found[i], i, 9))
    return strategy, grid


def names(strategy: Strategy) -> list[str]:
    return [site.name for site in strategy.sites]


@pytest.mark.parametrize(("newcomers", "let_in"), [("known", False), ("any", True)])
def test_one_more_than_was_counted_on_needs_the_operator_s_word(
    federation: tuple[Strategy, Growing],
    caplog: pytest.LogCaptureFixture,
    newcomers: str,
    let_in: bool,
) -> None:
    strategy, grid = federation
    settings = QUICK.model_copy(update={"newcomers": newcomers})
    grid.here = 3
    strategy.members.update(grid, strategy.question, settings, lambda site: None)
    assert names(strategy) == (["east", "north", "south"] if let_in else ["north", "south"])
    message = "node 1002 is left out: site 'east' was not counted on (federation.sites=2): feder"
    assert (message in caplog.text) != let_in


def test_more_than_were_counted_on_at_the_start_are_refused_by_name(small: Small) -> None:
    made = Division(load(small(set="federation.sites=2"))).run
    three = [Site(name, i, 9) for i, name in enumerate(("east", "north", "south"))]
    with pytest.raises(FederationError, match=r"3 sites are there \(east, north, south\) where"):
        with_actual_sites(made, three)
    taken = Division(load(small(set="federation.sites=2 federation.newcomers=any"))).run
    assert with_actual_sites(taken, three).config.federation.sites == 3
    shares = [replace(site, partition=i, partitions=3) for i, site in enumerate(three)]
    assert with_actual_sites(made, shares).config.federation.sites == 3
