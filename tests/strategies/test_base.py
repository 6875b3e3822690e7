"""What the base does for every method: parts serialised once, sites left out, a quorum of those asked, parcels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pytest
import torch
from federation import numbers, run
from flwr.app import ArrayRecord, ConfigRecord
from small import Small

from client_app.app import app as client_app
from common.config.loading import load
from common.division import Division
from common.sites import Site
from common.wire.bundle import Bundle
from common.wire.weights import Weights
from nectar.engines.local_grid import LocalGrid
from strategies.base import Instruction
from strategies.exchange.instructions import OneTimePayloads
from strategies.exchange.replies import Outcome, Upload
from strategies.fedavg import FedAvg


class Apart(FedAvg):
    """Sends the weights to all, and with them a part for each site alone."""

    def instructions(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Leave the second site out."""
        return {
            s.name: Instruction(
                "train",
                Bundle({"weights": weights, "own": Weights({"w": torch.tensor([float(i)])})}),
                self.run.spec,
            )
            for i, s in enumerate(sites)
            if i != 1
        }


def test_a_part_that_goes_to_many_is_serialised_once_and_a_site_can_be_left_out(
    small: Small,
) -> None:
    config = small()
    strategy = Apart(Division(load(config)).run)
    grid = LocalGrid(client_app, 3, config)
    strategy.ensure_roll_call(grid)
    start = ArrayRecord(strategy.run.build_model().state_dict())
    one, other = strategy.configure_train(1, start, ConfigRecord(), grid)
    there = [list(m.content.array_records["arrays"].values()) for m in (one, other)]
    shared = [a.data is b.data for a, b in zip(*there, strict=True)]
    assert shared == [False, *[True] * (1 + len(strategy.run.spec.names)), False, False]
    assert [m.metadata.dst_node_id for m in (one, other)] == [
        strategy.sites[0].node_id,
        strategy.sites[2].node_id,
    ]


class Half(FedAvg):
    """Asks the first site alone."""

    def instructions(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Return its instruction."""
        return dict(list(super().instructions(server_round, weights, sites).items())[:1])

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Average one."""
        return super().update(server_round, weights, uploads)


def test_the_quorum_is_of_those_that_are_asked(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strategies.fedavg.FedAvg", Half)
    record = run(small(method="fedavg", set="federation.min_replies=3"))
    assert [line["accepted"] for line in numbers(record)] == [[], ["partition-0"], ["partition-0"]]


def test_a_parcel_goes_out_until_it_is_known_to_be_there() -> None:
    payloads, outcome = OneTimePayloads(), Outcome()
    assert payloads.pending("a", 1)
    assert payloads.pending("b", 1)
    outcome.accepted = {"a": {}}
    payloads.confirm(outcome)
    assert [payloads.pending(site, 1) for site in "ab"] == [False, True]
    outcome.accepted = {"a": {}, "b": {}}
    payloads.confirm(outcome)
    assert [payloads.pending(site, 1) for site in "ab"] == [False, False]
    outcome.accepted = {"a": {"memory-lost": 1.0}, "b": {}}
    payloads.confirm(outcome)
    assert [payloads.pending(site, 1) for site in "ab"] == [True, False]
    assert OneTimePayloads(payloads.held).pending("b", 2)
