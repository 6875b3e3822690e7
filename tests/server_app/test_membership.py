"""Nodes that leave, come back, join late, or should not be let in."""

from __future__ import annotations

from typing import Any

import pytest
from federation import SMALL_CLIENTS, run
from small import Small

from client_app.app import app as client_app
from common.config.loading import load
from common.division import Division
from common.errors import FederationError
from common.settings.sections import FederationSettings
from nectar.engines.local_grid import LocalGrid
from server_app.app import make_strategy
from strategies.base import Strategy

QUICK = FederationSettings(join_deadline=0.1, round_deadline=5.0)


class ChangingGrid(LocalGrid):
    """A federation whose nodes are there or not, as the test says."""

    away: frozenset[int] = frozenset()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._configs = {n: LocalGrid.node_config(self, n) for n in super().get_node_ids()}

    def get_node_ids(self) -> list[int]:
        """Return the nodes that are there."""
        return [n for n in super().get_node_ids() if n not in self.away]

    def node_config(self, node_id: int) -> dict[str, Any]:
        """Return a node's config, to change it."""
        return self._configs[node_id]


@pytest.fixture
def federation(small: Small) -> tuple[Strategy, ChangingGrid]:
    config = small()
    grid = ChangingGrid(client_app, SMALL_CLIENTS, config)
    strategy = make_strategy(Division(load(config)).run)
    strategy.ensure_roll_call(grid)
    return strategy, grid


def update(strategy: Strategy, grid: ChangingGrid, settings: FederationSettings = QUICK) -> None:
    strategy.members.update(grid, strategy.question, settings, lambda site: None)


def names(strategy: Strategy) -> list[str]:
    return [site.name for site in strategy.sites]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"site": "partition-0"}, "two nodes call themselves 'partition-0'"),
        ({"num-partitions": 7}, "the nodes disagree on num-partitions"),
        ({"site": "../up"}, "is not allowed"),
    ],
)
def test_a_newcomer_that_does_not_belong_is_left_out_and_named(
    federation: tuple[Strategy, ChangingGrid],
    caplog: pytest.LogCaptureFixture,
    change: dict[str, Any],
    said: str,
) -> None:
    strategy, grid = federation
    newcomer = grid.get_node_ids()[2]
    grid.away = frozenset({newcomer})
    update(strategy, grid)
    grid.node_config(newcomer).update(change)
    grid.away = frozenset()
    with caplog.at_level("WARNING", logger="flwr"):
        update(strategy, grid)
    assert names(strategy) == ["partition-0", "partition-1"]
    assert said in caplog.text
    caplog.clear()
    update(strategy, grid)
    assert caplog.text == ""


def test_a_slow_answer_is_no_refusal_and_a_node_that_returns_is_asked_again(
    federation: tuple[Strategy, ChangingGrid], monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy, grid = federation
    everybody, newcomer = names(strategy), grid.get_node_ids()[2]
    grid.away = frozenset({newcomer})
    update(strategy, grid)
    grid.away = frozenset()
    with monkeypatch.context() as silent:
        silent.setattr(ChangingGrid, "pull_messages", lambda self, ids: [])
        update(strategy, grid, QUICK.model_copy(update={"round_deadline": 0.05}))
    assert names(strategy) == everybody[:2]
    update(strategy, grid)
    assert names(strategy) == everybody
    grid.away = frozenset({newcomer})
    update(strategy, grid)
    grid.node_config(newcomer)["site"] = "partition-0"
    grid.away = frozenset()
    update(strategy, grid)
    assert newcomer in strategy.members.refused
    grid.away = frozenset({newcomer})
    update(strategy, grid)
    del grid.node_config(newcomer)["site"]
    grid.away = frozenset()
    update(strategy, grid)
    assert names(strategy) == everybody


def test_with_too_few_left_the_run_says_so_at_the_join_deadline(
    federation: tuple[Strategy, ChangingGrid],
) -> None:
    strategy, grid = federation
    grid.away = frozenset(grid.get_node_ids()[1:])
    with pytest.raises(FederationError, match=r"1 sites are left where .* asks for 2"):
        update(strategy, grid, QUICK.model_copy(update={"min_replies": 2}))


def test_nodes_that_never_come_are_counted_at_the_join_deadline(small: Small) -> None:
    class Short(LocalGrid):
        """A federation in which one node of three never comes."""

        def get_node_ids(self) -> list[int]:
            """Return all nodes but the last."""
            return super().get_node_ids()[:-1]

    with pytest.raises(FederationError, match=r"2 of 3 sites were there after 0.3 s \(partition-0"):
        run(small(set="federation.join_deadline=0.3"), Short)
