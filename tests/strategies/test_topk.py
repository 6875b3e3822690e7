"""Top-k: FedAvg's training, the update's largest numbers, FedAvg's average."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federation import numbers, run
from flwr.app import RecordDict
from small import Small

from client_app.fedavg import FedAvgClient
from client_app.state import ContextState
from client_app.topk import TopKClient
from common.config.loading import load
from common.division import Division
from common.errors import ConfigError, PayloadError
from common.learning.run import Run
from common.learning.task import difference
from common.samples.inputs import Samples
from common.sites import Site
from common.specs.sparse import top_k_spec
from common.wire.sparse import TopKUpdate, TopKUpdateSpec, payload_bytes
from common.wire.weights import Weights
from server_app.app import make_strategy
from strategies.exchange.replies import Upload
from strategies.topk import TopK

QUICK = "topk.epochs=1 topk.batch=64"


def made(small: Small, words: str = "") -> Run:
    return Division(load(small(method="topk", set=f"{QUICK} {words}"))).run


def upload(spec: TopKUpdateSpec, name: str, update: torch.Tensor, examples: int) -> Upload:
    return Upload(Site(name, 1, examples), TopKUpdate.of(update, spec), examples, {})


@pytest.mark.parametrize(
    ("weighting", "shares"), [("counts", (0.25, 0.75)), ("uniform", (0.5, 0.5))]
)
def test_the_average_of_the_largest_by_hand(
    small: Small, weighting: str, shares: tuple[float, float]
) -> None:
    """Sites of 10 and 30 images whose largest numbers, 8 and -4, overlap in half of their places; 0 elsewhere."""
    run = made(small, f"topk.weighting={weighting}")
    spec, start = top_k_spec(run), Weights.of(run.build_model())
    half = spec.k // 2
    a, b = torch.full((spec.total,), 0.5), torch.full((spec.total,), 0.5)
    a[: spec.k] = 8.0
    b[half : half + spec.k] = -4.0
    uploads = iter([upload(spec, "a", a, 10), upload(spec, "b", b, 30)])
    moved = difference(TopK(run).update(1, start, uploads), start)
    expected = torch.zeros(spec.total)
    expected[: spec.k] += shares[0] * 8
    expected[half : half + spec.k] -= shares[1] * 4
    assert torch.allclose(moved, expected, rtol=0, atol=1e-5)


def test_what_is_sent_are_the_largest_numbers_of_fedavgs_own_update(small: Small) -> None:
    """The same draws as FedAvg's device: its update's k largest numbers, at their places, to the bit."""
    rng = torch.Generator().manual_seed(2)
    samples = Samples.of(torch.randn(64, 1, 8, 8, generator=rng), torch.arange(64) % 10)
    topk, plain = made(small), Division(load(small(method="fedavg"))).run
    w = Weights.of(topk.build_model())
    clients = [
        cls(of, "partition-0", samples, samples, ContextState(RecordDict()))
        for cls, of in ((TopKClient, topk), (FedAvgClient, plain))
    ]
    for client in clients:
        client.begin({"server-round": 3})
    sent, trained = (client.train(w) for client in clients)
    update = difference(trained, w)
    order = np.argsort(-update.abs().numpy(), kind="stable")[: top_k_spec(topk).k]
    assert sent.indices.tolist() == sorted(order.tolist())
    assert torch.equal(sent.values, update[sent.indices])


@pytest.mark.extended
def test_a_run_learns_is_the_same_twice_and_pays_what_its_rate_says(small: Small) -> None:
    """With c = |kept| / |update|, what is left out has the squared length 1 - c^2."""
    words = f"{QUICK} topk.epochs=3 topk.rate=4 topk.lr=0.1"
    one, other = (run(small(method="topk", rounds=2, set=words)) for _ in range(2))
    assert numbers(one) == numbers(other)
    lines, spec = one.metrics(), top_k_spec(made(small, words))
    assert lines[2]["test"]["accuracy"] > lines[0]["test"]["accuracy"] + 0.3
    assert lines[2]["floats_up"] == 3 * spec.k
    room = 4 * spec.total / 4
    assert room - 6 < payload_bytes(spec.total, spec.k, "float32") <= room
    for figures in lines[1]["devices"].values():
        c = figures["cosine"]
        assert 0.5 < c < 1
        assert figures["norm-error"] == pytest.approx((1 - c**2) ** 0.5, rel=1e-4)


def test_a_device_whose_training_diverged_says_so(small: Small) -> None:
    """Its update is not finite: it does not leave the device, and the other sites' rounds go on without it."""
    run_ = made(small, "topk.lr=1e30 topk.epochs=20")
    samples = Samples.of(torch.ones(8, 1, 8, 8), torch.arange(8))
    client = TopKClient(run_, "a", samples, samples, ContextState(RecordDict()))
    with pytest.raises(PayloadError, match="not finite"):
        client.train(Weights.of(run_.build_model()))


@pytest.mark.parametrize("codec", ["float32", "float16"])
def test_a_rate_that_leaves_nothing_names_the_largest_and_that_one_is_possible(
    small: Small, codec: str
) -> None:
    words = f"topk.values={codec}"
    with pytest.raises(ConfigError, match=r"the largest possible rate is [\d.]+\.$") as refused:
        make_strategy(made(small, f"{words} topk.rate=1e7"))
    most = str(refused.value).rstrip(".").rpartition(" ")[2]
    assert top_k_spec(made(small, f"{words} topk.rate={most}")).k == 1
    with pytest.raises(ConfigError):
        top_k_spec(made(small, f"{words} topk.rate={float(most) + 0.01}"))
