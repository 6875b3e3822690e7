"""Flower's own strategies by path: every one that Flower exports, against its definition."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from federation import numbers, resumed, run
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from small import Small
from tiers import only_these_first
from tiny import HALVES, Tiny, tiny_run

from client_app.fedavg import ForeignClient
from client_app.state import DirectoryState
from common.config.loading import load
from common.config.resolved import Config
from common.errors import FederationError
from common.samples.inputs import Samples
from common.sites import Site
from common.specs.updates import Demands
from common.wire.weights import Weights
from server_app.app import make_strategy
from server_app.checkpoint import Checkpoint
from server_app.record import Record
from strategies.exchange.instructions import weights_from
from strategies.foreign import ForeignStrategy

pytestmark = pytest.mark.promise(
    "Records",
    "Each Flower strategy runs or is refused at once",
)

HERE = __name__
PATH = "flwr.serverapp.strategy"
DOCS = Path(__file__).parents[2] / "docs" / "own-parts.md"


def fedavg() -> flower.FedAvg:
    """What the wrappers below wrap; waiting and the quorum are Nectar's."""
    return flower.FedAvg(min_train_nodes=1, min_available_nodes=1)


class FixedAtServer(flower.DifferentialPrivacyServerSideFixedClipping):
    """A user's subclass, whose constructor makes what no setting can give."""

    def __init__(self, noise_multiplier: float, clipping_norm: float, clients: int = 3) -> None:
        super().__init__(fedavg(), noise_multiplier, clipping_norm, clients)


class FixedAtClients(flower.DifferentialPrivacyClientSideFixedClipping):
    """The same with clients that clip."""

    def __init__(self, noise_multiplier: float, clipping_norm: float, clients: int = 3) -> None:
        super().__init__(fedavg(), noise_multiplier, clipping_norm, clients)


class AdaptiveAtServer(flower.DifferentialPrivacyServerSideAdaptiveClipping):
    """The same with a norm that follows a quantile."""

    def __init__(self, noise_multiplier: float, norm: float, clients: int = 3) -> None:
        super().__init__(fedavg(), noise_multiplier, clients, norm)


class AdaptiveAtClients(flower.DifferentialPrivacyClientSideAdaptiveClipping):
    """And with clients that clip."""

    def __init__(self, noise_multiplier: float, norm: float, clients: int = 3) -> None:
        super().__init__(fedavg(), noise_multiplier, clients, norm)


PLAIN = "FedAvg FedMedian FedAvgM FedAdagrad FedAdam FedYogi FedTrimmedAvg Krum MultiKrum Bulyan"

#: every strategy that Flower exports: what it is named by, and the arguments it has to have
RUNS: Mapping[str, tuple[str, str]] = {
    **{name: (f"{PATH}:{name}", "") for name in PLAIN.split()},
    "FedProx": (f"{PATH}:FedProx", "strategy.proximal_mu=0.1"),
    "QFedAvg": (f"{PATH}:QFedAvg", "strategy.client_learning_rate=0.1"),
    "DifferentialPrivacyServerSideFixedClipping": (
        f"{HERE}:FixedAtServer",
        "strategy.noise_multiplier=0.1 strategy.clipping_norm=1",
    ),
    "DifferentialPrivacyClientSideFixedClipping": (
        f"{HERE}:FixedAtClients",
        "strategy.noise_multiplier=0.1 strategy.clipping_norm=1",
    ),
    "DifferentialPrivacyServerSideAdaptiveClipping": (
        f"{HERE}:AdaptiveAtServer",
        "strategy.noise_multiplier=0.1 strategy.norm=1",
    ),
    "DifferentialPrivacyClientSideAdaptiveClipping": (
        f"{HERE}:AdaptiveAtClients",
        "strategy.noise_multiplier=0.1 strategy.norm=1",
    ),
}
REFUSED = {"FedXgbBagging", "FedXgbCyclic"}


def test_in_a_private_run_a_strategy_goes_without_the_loss(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DP-SGD is such a run: its sites tell no figure of their own examples."""
    monkeypatch.setattr(Config, "private", True)
    record = run(small(method="flwr.serverapp.strategy:FedAdam"))
    for line in record.metrics()[1:]:
        assert len(line["accepted"]) == 3
        assert not any(line["devices"].values())


@pytest.mark.parametrize("name", only_these_first(RUNS, "FedAdam", long=("Bulyan", "QFedAvg")))
def test_it_runs_two_rounds_on_the_digits(small: Small, name: str) -> None:
    path, arguments = RUNS[name]
    record = run(small(method=path, set=arguments))
    lines = record.metrics()
    assert [line["round"] for line in lines] == [0, 1, 2]
    assert all(math.isfinite(line["test"]["loss"]) for line in lines)
    assert lines[0]["test"] != lines[1]["test"] != lines[2]["test"]
    assert record._provenance()["outcome"] == "completed"


def test_the_table_of_the_documents_has_each_that_flower_exports() -> None:
    exported = set(flower.__all__) - {"Strategy", "Result"}
    assert exported == RUNS.keys() | REFUSED
    rows = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    for name in exported:
        row = [line for line in rows if f"`{name}`" in line]
        assert len(row) == 1, name
        assert ("refused" in row[0]) == (name in REFUSED)


# ---- what a device is asked for ------------------------------------------------------------------------


def trained(directory: Path, asked: Mapping[str, Any]) -> tuple[float, Mapping[str, Any]]:
    """Return the weight that a site with a = 3 sends, from 0 in two steps at 1/2, and its figures."""
    tiny = Tiny(directory, "fedavg")
    x, y = torch.ones(1, 1, 1, 1), torch.tensor([3])
    state = DirectoryState(directory, "record", "site-0")
    client = ForeignClient(tiny.run, "site-0", Samples.of(x, y), Samples.of(x, y), state)
    config = {"server-round": 1, "phase": "train", **asked}
    arrays, _, figures = client.fit(tiny.weights.encode(), config)
    sent = tiny.run.spec.decode(arrays)
    return float(sent.tensors["head.weight"]), figures


@pytest.mark.parametrize(
    ("asked", "weight", "bit"),
    [
        ({}, 2.25, None),
        ({"proximal-mu": 0.0}, 2.25, None),
        ({"proximal-mu": 1.0}, 1.5, None),
        ({"clipping_norm": 0.5}, 0.5, 1.0),
        ({"clipping_norm": 2.25}, 2.25, 0.0),
        ({"clipping_norm": 4}, 2.25, 0.0),
        ({"clipping_norm": 0.0}, 0.0, 1.0),
        ({"proximal-mu": 1.0, "clipping_norm": 1.0}, 1.0, 1.0),
    ],
)
def test_a_device_follows_the_pull_and_the_norm_by_hand(
    tmp_path: Path, asked: dict[str, float], weight: float, bit: float | None
) -> None:
    """Plain: 0, 3/2, 9/4. With mu = 1: 3/2, and there (3/2 - 3) + 3/2 = 0. Cut: what is longer ends at C."""
    ended, figures = trained(tmp_path, asked)
    assert ended == weight
    assert figures.get("norm-bit") == bit


@pytest.mark.parametrize("key", ["proximal-mu", "clipping_norm"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, "much", True, [1.0]])
def test_what_is_no_finite_number_of_0_or_more_is_refused(
    tmp_path: Path, key: str, value: object
) -> None:
    with pytest.raises(FederationError, match=f"{key}=.* where a finite number of 0 or more"):
        trained(tmp_path, {key: value})


def test_what_a_server_sends_is_what_a_device_reads() -> None:
    for demands in (Demands(), Demands(0.5), Demands(norm=0.0), Demands(0.5, 2.0)):
        assert Demands.of(demands.fields()) == demands


@pytest.mark.extended
def test_flowers_fedprox_is_ours(small: Small) -> None:
    """It weights by counts in float32 sums, ours in float64: equal to rounding, and far from FedAvg."""
    ours = run(small(method="fedprox", set="fedprox.mu=1.0"))
    theirs = run(small(method=f"{PATH}:FedProx", set="strategy.proximal_mu=1.0"))
    plain = run(small(method="fedavg"))
    a, b, c = (Checkpoint.load(r.last).weights for r in (ours, theirs, plain))
    assert all(torch.allclose(a[k], b[k], atol=1e-6) for k in a)
    assert not all(torch.allclose(a[k], c[k], atol=1e-4) for k in a)


NORM = 0.05


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("clients", "server", "norm"),
    [
        ("FixedAtClients", "FixedAtServer", "clipping_norm"),
        ("AdaptiveAtClients", "AdaptiveAtServer", "norm"),
    ],
)
def test_clipping_at_the_devices_is_flowers_clipping_at_the_server(
    small: Small, clients: str, server: str, norm: str
) -> None:
    """Without noise; the adaptive norm goes by who was cut: all, so that it falls by exp(-0.2 (1 - 1/2))."""
    given = f"strategy.noise_multiplier=0 strategy.{norm}={NORM}"
    one, other = (run(small(method=f"{HERE}:{name}", set=given)) for name in (clients, server))
    a, b = (Checkpoint.load(r.last) for r in (one, other))
    assert all(torch.allclose(a.weights[k], b.weights[k], atol=1e-6) for k in a.weights)
    assert [line["train"]["norm_bit"] for line in one.metrics()[1:]] == [1.0, 1.0]
    assert "norm_bit" not in other.metrics()[1]["train"]
    if norm == "norm":
        assert a.strategy["clipping_norm"] == pytest.approx(NORM * math.exp(-0.1) ** 2)
        assert b.strategy["clipping_norm"] == a.strategy["clipping_norm"]


# ---- what a strategy makes of it -----------------------------------------------------------------------


def aggregated(
    method: str,
    words: str,
    ends: tuple[float, float] = (1.0, 3.0),
    figures: Mapping[str, tuple[float, float]] | None = None,
) -> float:
    """Return the weight after a round from 0 of two sites, with 1 and 3 examples, that end at ``ends``."""
    own = " ".join(f"fedavg.{word}" for word in HALVES.split())
    given = f"{own} {words} federation.sites=2 federation.max_update=0 federation.min_replies=1"
    made = tiny_run(load({"method": method, "set": given}))
    strategy = make_strategy(made)
    assert isinstance(strategy, ForeignStrategy)
    strategy.members.sites = [Site("site-0", 1, 1), Site("site-1", 2, 3)]
    strategy.resulting_model = lambda weights, upload: None  # type: ignore[method-assign,assignment,return-value]
    start = ArrayRecord(made.build_model().state_dict())
    replies = []
    said = {"train-loss": (1.0, 4.0), **(figures or {})}
    sent = strategy.configure_train(1, start, ConfigRecord(), None)  # type: ignore[arg-type]
    for i, message in enumerate(sent):
        message.metadata.__dict__["_message_id"] = str(i)
        encoded = Weights({"head.weight": torch.tensor([[ends[i]]])}).encode()
        metrics = {key: values[i] for key, values in said.items()}
        content = RecordDict(
            {
                "arrays": ArrayRecord(encoded),
                "metrics": MetricRecord({**metrics, "num-examples": (1, 3)[i]}),
            }
        )
        replies.append(Message(content, reply_to=message))
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is not None
    return float(weights_from(made, arrays).tensors["head.weight"])


@pytest.mark.parametrize(("weighting", "mean"), [("counts", 2.5), ("uniform", 2.0)])
def test_the_runs_weighting_is_the_strategys(weighting: str, mean: float) -> None:
    """(1 + 3 x 3) / 4 and (1 + 3) / 2."""
    assert aggregated(f"{PATH}:FedAvg", f"fedavg.weighting={weighting}") == mean


@pytest.mark.extended
def test_q_fedavg_by_hand() -> None:
    """q = 1, L = 1 / 0.5 = 2, w = 0, losses 1 and 4 (Li et al., 2020, Algorithm 2).

    Gradients L (w - w_k): -2, -6. Delta_k = F_k grad: -2, -24; h_k = grad^2 + L F_k: 4 + 2, 36 + 8.
    w' = 26 / 50.
    """
    words = "strategy.client_learning_rate=0.5 strategy.q=1"
    assert aggregated(f"{PATH}:QFedAvg", words) == pytest.approx(0.52, abs=1e-6)


@pytest.mark.extended
def test_a_strategys_own_reason_to_stop_is_a_sentence(small: Small) -> None:
    given = "strategy.client_learning_rate=0.5 strategy.train_loss_key=loss"
    with pytest.raises(FederationError, match=f"{PATH}:QFedAvg: Missing or invalid training loss"):
        run(small(method=f"{PATH}:QFedAvg", set=given))


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({}, "the figure 'norm-bit' is missing from the reply"),
        ({"norm-bit": (0.5, 0.5)}, "the figure 'norm-bit' is 0.5 where 0 or 1 was expected"),
    ],
)
def test_a_reply_that_does_not_say_whether_it_was_cut_is_rejected(
    figures: dict[str, tuple[float, float]], said: str
) -> None:
    words = "strategy.noise_multiplier=0 strategy.clipping_norm=1 strategy.clients=2"
    with pytest.raises(FederationError, match=said):
        aggregated(f"{HERE}:FixedAtClients", words, figures=figures)


# ---- runs that update nothing --------------------------------------------------------------------------

BULYAN = "strategy.num_malicious_nodes=1"


def test_a_run_in_which_no_round_updated_the_weights_has_failed(
    small: Small, tmp_path: Path
) -> None:
    """Bulyan with one malicious node needs 7 replies, and gets 3."""
    with pytest.raises(FederationError, match="none of 2 rounds updated the weights"):
        run(small(method=f"{PATH}:Bulyan", set=BULYAN))
    (directory,) = (tmp_path / "runs").iterdir()
    record = Record(directory)
    lines = record.metrics()
    assert [(line["round"], line.get("updated")) for line in lines[1:]] == [(1, False), (2, False)]
    assert lines[2]["accepted"] == ["partition-0", "partition-1", "partition-2"]
    assert lines[0]["test"] == lines[2]["test"]
    assert record._provenance()["outcome"].startswith("failed: none of 2 rounds updated")


class EverySecond(flower.FedAvg):
    """Makes an update in odd rounds."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        made = super().aggregate_train(server_round, replies)
        return made if server_round % 2 else (None, None)


@pytest.mark.extended
def test_one_round_with_an_update_is_enough_also_where_the_run_goes_on_later(small: Small) -> None:

    record = run(small(method=f"{HERE}:EverySecond", rounds=1))
    resumed(record, 2)
    assert record._provenance()["outcome"] == "completed"
    assert numbers(record) == numbers(run(small(method=f"{HERE}:EverySecond")))
    assert [line.get("updated", True) for line in record.metrics()] == [True, True, False]
