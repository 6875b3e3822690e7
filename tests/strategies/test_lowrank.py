"""Low-rank updates: FedAvg's training, two factors of each matrix, what they leave out, FedAvg's average."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from federation import TamperedGrid, numbers, run
from flwr.app import RecordDict
from small import Small
from tampering import with_arrays

from client_app.fedavg import FedAvgClient
from client_app.lowrank import LowRankClient
from client_app.state import ContextState
from common.config.loading import load
from common.division import Division
from common.errors import PayloadError
from common.learning.run import Run
from common.samples.inputs import Samples
from common.sites import Site
from common.specs.sparse import factors_spec, ranks_of, update_of
from common.specs.updates import TAKEN
from common.wire.weights import Weights
from strategies.exchange.replies import Upload
from strategies.lowrank import LowRank
from synth.sparse_updates import factors

QUICK = "model.name=mlp model.width=30 {0}.epochs=1 {0}.batch=64 {0}.lr=0.1"


def made(small: Small, words: str = "", method: str = "lowrank") -> Run:
    return Division(load(small(method=method, set=f"{QUICK.format(method)} {words}"))).run


def some() -> Samples:
    rng = torch.Generator().manual_seed(2)
    return Samples.of(torch.randn(64, 1, 8, 8, generator=rng), torch.arange(64) % 10)


def client(
    run_: Run, state: ContextState, server_round: int, taken: int = 0, cls: Any = LowRankClient
) -> Any:
    site = cls(run_, "partition-0", some(), some(), state)
    site.begin({"server-round": server_round, TAKEN: taken})
    return site


def by_name(run_: Run, sent: Weights) -> dict[str, torch.Tensor]:
    arrived = factors_spec(run_).decode(sent.encode())
    return dict(update_of(arrived, run_))


def fedavgs_update(small: Small, w: Weights, server_round: int) -> dict[str, torch.Tensor]:
    plain = made(small, method="fedavg")
    ended = client(plain, ContextState(RecordDict()), server_round, cls=FedAvgClient).train(w)
    return {name: (t.double() - w.tensors[name].double()) for name, t in ended.tensors.items()}


def test_the_first_round_sends_one_power_iteration_of_fedavgs_update(small: Small) -> None:
    """Matrices by what ``factors`` gives of that update in float64, from a Q that sites share; vectors whole."""
    run_ = made(small, "lowrank.rank=3")
    w = Weights.of(run_.build_model())
    sent, other = (client(run_, ContextState(RecordDict()), r).train(w) for r in (1, 1))
    assert all(torch.equal(t, other.tensors[n]) for n, t in sent.tensors.items())
    expected, found = fedavgs_update(small, w, 1), by_name(run_, sent)
    ranks = ranks_of(run_)
    assert set(ranks.values()) == {3}
    assert found.keys() == expected.keys()
    for name, update in expected.items():
        if name not in ranks:
            assert torch.allclose(found[name], update, atol=1e-6), name
            continue
        left = sent.tensors[f"{name}.left"].double()
        near = left @ (left.T @ update.flatten(1))
        assert torch.allclose(found[name].flatten(1), near, atol=1e-6), name
        assert 0.2 < float((found[name] - update).norm() / update.norm()) < 1, name


def test_what_is_left_out_is_added_the_next_time_and_nothing_of_a_reply_that_was_not_taken(
    small: Small,
) -> None:
    """e_1 = u_1 - P_1 Q_1^T; round 2 sends of u_2 + e_1, from Q_1; where round 1 was not taken, of u_2 alone."""
    run_ = made(small, "lowrank.rank=2")
    w, state = Weights.of(run_.build_model()), ContextState(RecordDict())
    site = client(run_, state, 1)
    first = site.train(w)
    site.round.end()
    second = by_name(run_, client(run_, state, 2, taken=1).train(w))
    afresh = by_name(run_, client(run_, state, 2, taken=0).train(w))
    u_1, u_2, sent_1 = (
        fedavgs_update(small, w, 1),
        fedavgs_update(small, w, 2),
        by_name(run_, first),
    )
    for name in ranks_of(run_):
        owed = u_1[name] - sent_1[name]
        left, right = factors(
            (u_2[name] + owed).flatten(1), first.tensors[f"{name}.right"].double()
        )
        assert torch.allclose(second[name].flatten(1), left @ right.T, atol=1e-5), name
        assert not torch.allclose(afresh[name], second[name], atol=1e-3)
    without = made(small, "lowrank.rank=2 lowrank.feedback=off")
    memory = ContextState(RecordDict())
    site = client(without, memory, 1)
    site.train(w)
    site.round.end()
    plain = by_name(without, client(without, memory, 2, taken=1).train(w))
    for name in ranks_of(run_):
        left, right = factors(u_2[name].flatten(1), first.tensors[f"{name}.right"].double())
        assert torch.allclose(plain[name].flatten(1), left @ right.T, atol=1e-5), name


def test_over_rounds_of_one_update_the_feedback_sends_all_of_it() -> None:
    """With u the same each time, the mean of what was sent tends to u: what is owed stays bounded."""
    numbers = torch.Generator().manual_seed(1)
    update = torch.randn(12, 9, generator=numbers, dtype=torch.float64)
    owed, sent = torch.zeros_like(update), torch.zeros_like(update)
    last, errors = torch.randn(9, 2, generator=numbers, dtype=torch.float64), []
    for n in range(1, 201):
        left, last = factors(update + owed, last)
        owed = update + owed - left @ last.T
        sent += left @ last.T
        errors.append(float((sent / n - update).norm() / update.norm()))
    assert errors[0] > 0.5
    assert errors[-1] < 0.05


def test_a_rank_that_leaves_no_smaller_factors_is_fedavg(small: Small) -> None:
    both = [
        run(small(method=method, rounds=2, set=f"{QUICK.format(method)} {words}"))
        for method, words in (("lowrank", "lowrank.rank=1000"), ("fedavg", ""))
    ]
    factored, plain = ([line["test"] for line in record.metrics()] for record in both)
    for one, other in zip(factored, plain, strict=True):
        assert one["accuracy"] == other["accuracy"]
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("weighting", "shares"), [("counts", (0.25, 0.75)), ("uniform", (0.5, 0.5))]
)
def test_the_average_of_two_sites_by_hand(
    small: Small, weighting: str, shares: tuple[float, float]
) -> None:
    run_ = made(small, f"lowrank.weighting={weighting}")
    spec, start = factors_spec(run_), Weights.of(run_.build_model())
    numbers = torch.Generator().manual_seed(4)
    sets = [
        Weights(
            {
                n: torch.randn(s, generator=numbers)
                for n, s in zip(spec.names, spec.shapes, strict=True)
            }
        )
        for _ in range(2)
    ]
    strategy = LowRank(run_)
    uploads = [
        strategy.prepare(1, start, Upload(Site(name, 1, examples), each, examples, {}))
        for name, examples, each in zip("ab", (10, 30), sets, strict=True)
    ]
    moved = strategy.update(1, start, iter(uploads))
    for name, shape in zip(run_.spec.names, run_.spec.shapes, strict=True):
        expected = start.tensors[name].double()
        for share, each in zip(shares, sets, strict=True):
            if name in ranks_of(run_):
                p, q = (each.tensors[name + side].double() for side in (".left", ".right"))
                expected = expected + share * torch.einsum("ir,jr->ij", p, q).reshape(shape)
            else:
                expected = expected + share * each.tensors[name].double()
        assert torch.allclose(moved.tensors[name].double(), expected, atol=1e-4), name


def test_a_run_learns_is_the_same_twice_and_sends_what_its_rank_says(small: Small) -> None:
    words = f"{QUICK.format('lowrank')} lowrank.rank=2 lowrank.epochs=3"
    one, other = (run(small(method="lowrank", rounds=3, set=words)) for _ in range(2))
    assert numbers(one) == numbers(other)
    lines = one.metrics()
    assert lines[3]["test"]["accuracy"] > lines[0]["test"]["accuracy"] + 0.3
    spec = factors_spec(made(small, "lowrank.rank=2"))
    assert lines[2]["floats_up"] == 3 * sum(int(np.prod(s)) for s in spec.shapes)
    assert lines[2]["floats_up"] < lines[2]["bytes"]["down"]["partition-0"] / 4


def _first(value: float) -> Any:
    def damage(arrays: list[Any]) -> list[Any]:
        return [arrays[0], np.full_like(arrays[1], value), *arrays[2:]]

    return damage


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda a: [a[0], *(np.full_like(x, 3e38) for x in a[1:])], "no finite numbers"),
        (_first(1e6), "federation.max_update"),
    ],
)
def test_hostile_factors_are_one_sites_fault(small: Small, damage: Any, said: str) -> None:
    tampers = {1: with_arrays(damage)}
    words = f"{QUICK.format('lowrank')} lowrank.rank=2"
    record = run(small(method="lowrank", rounds=1, set=words), TamperedGrid, tampers=tampers)
    line = record.metrics()[1]
    assert line["accepted"] == ["partition-0", "partition-2"]
    assert said in line["rejected"]["partition-1"]


def test_a_device_whose_training_diverged_says_so(small: Small) -> None:
    run_ = made(small, "lowrank.lr=1e30 lowrank.epochs=20")
    with pytest.raises(PayloadError, match="not finite"):
        client(run_, ContextState(RecordDict()), 1).train(Weights.of(run_.build_model()))
