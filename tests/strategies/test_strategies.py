"""Strategies against numbers worked out by hand, under Nectar's loop and under Flower's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from federation import run
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from small import Small

from client_app.app import app as client_app
from common.config.loading import load
from common.division import Division
from common.errors import FederationError
from common.learning.run import Run
from common.sites import Site, in_site_order
from common.specs.updates import TAKEN
from common.wire.images import SyntheticImages
from common.wire.weights import Weights
from nectar.engines.local_grid import LocalGrid
from server_app.app import make_strategy
from strategies.exchange.evaluation import EvaluationRequest
from strategies.exchange.replies import Upload
from strategies.fedavg import FedAvg
from strategies.feddm import FedDM
from strategies.foreign import ForeignStrategy, SiteGrid


def upload(run: Run, name: str, value: float, examples: int) -> Upload:
    state = run.build_model().state_dict()
    payload = Weights({k: torch.full_like(v, value) for k, v in state.items()})
    return Upload(Site(name, 1, examples), payload, examples, {})


@pytest.mark.parametrize(("weighting", "mean"), [("counts", 2.5), ("uniform", 2.0)])
def test_fedavg_by_hand(small: Small, weighting: str, mean: float) -> None:
    """Models of all 1s (10 images) and all 3s (30): (10 + 90) / 40 = 2.5, or (1 + 3) / 2 = 2."""
    made = Division(load(small(method="fedavg", set=f"fedavg.weighting={weighting}"))).run
    start = Weights.of(made.build_model())
    uploads = iter([upload(made, "a", 1.0, 10), upload(made, "b", 3.0, 30)])
    new = FedAvg(made).update(1, start, uploads)
    assert all(torch.equal(t, torch.full_like(t, mean)) for t in new.tensors.values())


def images(labels: list[int], value: float) -> SyntheticImages:
    return SyntheticImages(torch.full((len(labels), 1, 8, 8), value), torch.tensor(labels))


def test_counts_weighting_by_hand(small: Small) -> None:
    """Site a: 30 images of class 0 behind 2, b: 10 of class 0 behind 2 and 20 of class 1 behind 1.

    n/ipc = 15, 15, 5, 5, 20, which divided by their mean, 12, gives the weights.
    """
    made = Division(load(small(set="feddm.image_weighting=counts"))).run
    received = [
        (Site("a", 1, 30, class_counts=(30, *[0] * 9)), images([0, 0], 1.0)),
        (Site("b", 2, 30, class_counts=(10, 20, *[0] * 8)), images([0, 0, 1], 2.0)),
    ]
    _, labels, each = FedDM(made)._union(received)
    assert labels.tolist() == [0, 0, 0, 0, 1]
    assert torch.allclose(each, torch.tensor([15.0, 15, 5, 5, 20]) / 12)


def test_the_server_stays_in_the_ball(small: Small) -> None:
    made = Division(
        load(small(set="image_training.ball=0.05 image_training.lr=1.0 image_training.epochs=20"))
    ).run
    start = Weights.of(made.build_model())
    upload = Upload(Site("a", 1, 3), images([0, 1, 2], 0.5), 3, {})
    new = FedDM(made).update(1, start, iter([upload]))
    moved = torch.cat([(new.tensors[k] - v).flatten() for k, v in start.tensors.items()])
    assert float(moved.norm()) == pytest.approx(0.05, rel=1e-4)


@pytest.mark.parametrize(("keep", "held"), [(1, 1), (2, 2), (0, 3)])
def test_a_server_keeps_the_last_rounds_sets(small: Small, keep: int, held: int) -> None:
    made = Division(load(small(set=f"feddm.keep={keep} image_training.epochs=1"))).run
    strategy, weights = FedDM(made), Weights.of(made.build_model())
    for r in (1, 2, 3):
        upload = Upload(Site("a", 1, 3), images([0], float(r)), 3, {})
        weights = strategy.update(r, weights, iter([upload]))
    assert [float(kept[0].mean()) for kept in strategy._kept] == [1.0, 2.0, 3.0][-held:]


@pytest.mark.sweep
@pytest.mark.parametrize("method", ["feddm", "real", "fedavg"])
def test_under_flowers_own_start_the_numbers_are_the_same(small: Small, method: str) -> None:
    """Flower's start knows nothing of Nectar's loop: the strategy makes its roll call itself.

    It asks the sites for their figures in an exchange of its own, and no instruction asks for them again.
    """
    config = small(method=method, set="evaluation.on=both data.site_holdout=0.2")
    ours = run(config)
    made = Division(load(config)).run
    strategy = make_strategy(made)
    result = strategy.start(
        LocalGrid(client_app, 3, config), ArrayRecord(made.build_model().state_dict()), num_rounds=2
    )
    from server_app.checkpoint import Checkpoint

    theirs = result.arrays.to_torch_state_dict()
    for name, tensor in Checkpoint.load(ours.last).weights.items():
        assert torch.equal(tensor, theirs[name])
    figures = {r: m["accuracy"] for r, m in result.evaluate_metrics_clientapp.items()}
    assert figures == {r: ours.metrics()[r]["sites"]["accuracy"] for r in (1, 2)}


def test_flowers_fedavg_is_ours_but_for_the_order_of_sums(small: Small) -> None:
    from server_app.checkpoint import Checkpoint

    ours, theirs = run(small(method="fedavg")), run(small(method="flwr.serverapp.strategy:FedAvg"))
    a, b = (Checkpoint.load(r.last).weights for r in (ours, theirs))
    assert all(torch.allclose(a[k], b[k], atol=1e-6) for k in a)
    up, down = ([r.metrics()[1]["bytes"][way] for r in (ours, theirs)] for way in ("up", "down"))
    assert up[0] == up[1]
    # a message names its record, and a record its method; ours says which of a site's rounds was taken, in 8 bytes
    without = [
        {site: n - more for site, n in bytes_down.items()}
        for bytes_down, more in zip(
            down, (len(ours.id) + len(TAKEN) + 8, len(theirs.id)), strict=True
        )
    ]
    assert without[0] == without[1]


class Recorder(FlowerFedAvg):
    """Notes what it is handed."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        self.handed = [r.error.reason if r.has_error() else r.content for r in replies]
        self.ids = [r.metadata.src_node_id for r in replies]
        return super().aggregate_train(server_round, replies)


def test_a_foreign_strategy_is_handed_an_error_for_every_bad_reply_in_site_order(
    small: Small,
) -> None:
    from federation import SilentGrid

    made = Division(load(small(method="flwr.serverapp.strategy:FedAvg"))).run
    inner = Recorder(min_train_nodes=1, min_available_nodes=1)
    strategy = ForeignStrategy(made, inner=inner)
    grid = SilentGrid(client_app, 3, small(method="fedavg"), silent=[1])
    from strategies.exchange.exchange import exchange

    start = ArrayRecord(made.build_model().state_dict())
    messages = strategy.configure_train(1, start, ConfigRecord(), grid)
    arrays, _ = strategy.aggregate_train(1, exchange(grid, messages, deadline=3))
    assert inner.ids == list(grid.get_node_ids())
    assert inner.handed[1] == "no reply within 3 s"
    assert list(inner.handed[0]["arrays"]) == list(made.spec.names)
    assert arrays is not None


class Demanding(FlowerFedAvg):
    """Sends a key that only its own devices would follow."""

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        return super().configure_train(
            server_round, arrays, ConfigRecord({"temperature": 0.1}), grid
        )


def test_a_strategy_whose_devices_must_follow_more_is_refused(small: Small) -> None:
    made = Division(load(small(method="flwr.serverapp.strategy:FedAvg"))).run
    strategy = ForeignStrategy(made, inner=Demanding(min_train_nodes=1, min_available_nodes=1))
    grid = LocalGrid(client_app, 3, small(method="fedavg"))
    start = ArrayRecord(made.build_model().state_dict())
    with pytest.raises(FederationError, match="asks its devices to follow temperature"):
        strategy.configure_train(1, start, ConfigRecord(), grid)


def test_a_strategy_that_wraps_another_is_checkpointed_with_it(small: Small) -> None:
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping as Wrapper

    made = Division(load(small(method="flwr.serverapp.strategy:FedAvg"))).run
    inner = FedAdam(min_train_nodes=1, min_available_nodes=1)
    strategy = ForeignStrategy(made, inner=Wrapper(inner, 0.1, 3))
    fresh = dict(strategy.state_dict())
    inner.m_t = {"w": torch.ones(2).numpy()}
    strategy.inner.clipping_norm = 0.25
    state = strategy.state_dict()
    assert fresh == {}
    assert state["clipping_norm"] == 0.25
    again = ForeignStrategy(made, inner=Wrapper(FedAdam(), 0.1, 3))
    again.load_state_dict(state)
    assert again.inner.clipping_norm == 0.25
    assert again.inner.strategy.m_t["w"].tolist() == [1.0, 1.0]


def test_a_foreign_strategy_sees_sites_not_nodes_and_draws_the_same(small: Small) -> None:
    import random

    grid = LocalGrid(client_app, 3, small())
    sites = [Site("b", 2, 1), Site("a", 7, 1), Site("c", 1, 1)]
    seen = SiteGrid(grid, in_site_order(sites), seed=5)
    draws = []
    for _ in range(2):
        random.random()
        assert seen.get_node_ids() == [7, 2, 1]
        draws.append(random.random())
    assert draws[0] == draws[1]


def test_sites_are_ordered_by_name_and_number() -> None:
    names = ["partition-10", "partition-2", "b", "partition-1", "a"]
    ordered = in_site_order(Site(n, i, 1) for i, n in enumerate(names))
    assert [s.name for s in ordered] == ["a", "b", "partition-1", "partition-2", "partition-10"]


def test_sites_evaluate_on_what_they_hold_out(small: Small) -> None:
    record = run(small(set="evaluation.on=both data.site_holdout=0.2"))
    line = record.metrics()[2]
    assert line["unevaluated"] == {}
    assert 0 <= line["sites"]["accuracy"] <= 1
    assert line["test"]["examples"] == 360
    with_none = run(small(set="evaluation.on=none"))
    assert with_none.metrics()[2]["test"] is None


def test_sites_count_by_their_images_and_broken_figures_not_at_all(small: Small) -> None:
    """4 images at 0.5 and 12 at 1.0: (2 + 12) / 16 = 0.875."""
    made = Division(load(small())).run
    strategy = make_strategy(made)
    figures = [(4, 0.5, 1.0), (12, 1.0, 2.0), (4, float("nan"), 1.0), (4, 7.0, 1.0), (0, 0.5, 1.0)]
    strategy.members.sites = [
        Site(f"s{i}", i + 1, 1, held_out=n) for i, (n, _, _) in enumerate(figures)
    ]
    replies = [
        Message(
            RecordDict({"metrics": MetricRecord({"accuracy": a, "loss": x, "num-examples": n})}),
            reply_to=Message(RecordDict(), i + 1, "evaluate"),
        )
        for i, (n, a, x) in enumerate(figures)
    ]
    strategy.members.evaluation = EvaluationRequest(1, sites=strategy.sites)
    found = strategy.aggregate_evaluate(1, replies)
    assert found is not None
    assert dict(found) == {"accuracy": 0.875, "loss": 1.75}


def test_the_log_says_which_settings_depart_from_the_defaults(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "flwr"):
        run(small(method="fedavg", rounds=1))
    (line,) = (line for line in caplog.messages if line.startswith("fedavg: "))
    assert line == "fedavg: epochs=1, lr=0.3, batch=64"
