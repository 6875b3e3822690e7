"""Random masking: FedAvg's training, a random part of the update, FedAvg's average in the mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federation import TamperedGrid, numbers, run
from flwr.app import RecordDict
from small import Small
from tampering import with_arrays

from client_app.masking import MaskingClient
from client_app.state import ContextState
from common.config.loading import load
from common.division import Division
from common.errors import ConfigError
from common.learning.run import Run
from common.learning.task import difference, length, plus
from common.models import build
from common.samples.inputs import Samples
from common.sites import Site
from common.specs.sparse import masked_spec
from common.wire.sparse import MaskedUpdate
from common.wire.weights import Weights, WeightsSpec
from server_app.app import make_strategy
from server_app.checkpoint import Checkpoint
from strategies.exchange.replies import Upload
from strategies.masking import Masking

QUICK = "masking.epochs=1 masking.batch=64"


def made(small: Small, words: str = "") -> Run:
    return Division(load(small(method="masking", set=f"{QUICK} {words}"))).run


def upload(run: Run, name: str, value: float, examples: int, seed: int) -> Upload:
    spec = masked_spec(run)
    payload = MaskedUpdate.of(torch.full((spec.total,), value), spec, seed)
    return Upload(Site(name, 1, examples), payload, examples, {})


@pytest.mark.parametrize(("weighting", "mean"), [("counts", 2.5), ("uniform", 2.0)])
def test_the_average_of_whole_updates_by_hand(small: Small, weighting: str, mean: float) -> None:
    """Updates of all 1s (10 images) and all 3s (30) at rate 1: (10 + 90) / 40 = 2.5, or (1 + 3) / 2 = 2."""
    run = made(small, f"masking.rate=1 masking.weighting={weighting}")
    start = Weights.of(run.build_model())
    uploads = iter([upload(run, "a", 1.0, 10, 1), upload(run, "b", 3.0, 30, 2)])
    new = Masking(run).update(1, start, uploads)
    for name, tensor in start.tensors.items():
        assert torch.allclose(new.tensors[name], tensor + mean, rtol=0, atol=1e-6)


def test_kept_numbers_are_scaled_by_the_rate_and_the_others_stay(small: Small) -> None:
    """One site, an update of all 1s at rate 4: 4 more at about a quarter of the places, nothing at the others."""
    run = made(small, "masking.rate=4")
    start = Weights.of(run.build_model())
    moved = difference(Masking(run).update(1, start, iter([upload(run, "a", 1.0, 10, 5)])), start)
    kept = (moved - 4).abs() < 1e-5
    assert bool((kept | (moved == 0)).all())
    assert float(kept.float().mean()) == pytest.approx(0.25, abs=0.05)


def test_an_update_is_added_to_floating_values_alone() -> None:
    """Running statistics are part of it; the count of batches is an integer, and stays."""
    model = build("convnet", (1, 8, 8), 10, depth=1, width=4, norm="batch")
    old = Weights.of(model)
    model.train()
    model(torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(1)))
    new = Weights.of(model)
    update = difference(new, old)
    assert len(update) == length(WeightsSpec.of(model)) == new.floats
    assert float(update.abs().max()) > 0  # the statistics have moved
    got = plus(old, update)
    for name, tensor in new.tensors.items():
        if tensor.is_floating_point():
            assert torch.allclose(got.tensors[name], tensor, rtol=0, atol=1e-6)
        else:
            assert torch.equal(got.tensors[name], old.tensors[name])
            assert not torch.equal(got.tensors[name], tensor)


@pytest.mark.extended
def test_at_rate_one_it_is_fedavg(small: Small) -> None:
    plain = run(small(method="fedavg"))
    masked = run(small(method="masking", set=f"{QUICK} masking.rate=1"))
    one, other = (Checkpoint.load(r.last).weights for r in (plain, masked))
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.allclose(tensor, other[name], rtol=0, atol=1e-6), name
    for line, whole in zip(numbers(masked)[1:], numbers(plain)[1:], strict=True):
        assert line["train"]["cosine"] == pytest.approx(1)
        assert line["train"]["norm-error"] == pytest.approx(0)
        assert line["train"]["train-loss"] == pytest.approx(whole["train"]["train-loss"], rel=1e-4)
        assert line["floats_up"] == whole["floats_up"]


@pytest.mark.extended
def test_a_run_is_the_same_twice_and_reports_what_its_masks_cost(small: Small) -> None:
    """With c = |kept| / |update| the scaled part is c off in angle, and ((r - 1) c)^2 + 1 - c^2 in squared length."""
    words = f"{QUICK} masking.rate=4 masking.values=float16"
    one, other = (run(small(method="masking", set=words)) for _ in range(2))
    assert numbers(one) == numbers(other)
    line = one.metrics()[2]
    spec = masked_spec(made(small, words))
    assert line["floats_up"] == pytest.approx(3 * spec.total / 4, rel=0.1)
    for figures in line["devices"].values():
        c = figures["cosine"]
        assert c == pytest.approx(0.5, abs=0.1)
        assert figures["norm-error"] == pytest.approx((9 * c**2 + 1 - c**2) ** 0.5, rel=1e-3)


def test_masks_differ_by_site_and_by_round(small: Small) -> None:
    run = made(small, "masking.rate=3")
    samples = Samples.of(torch.zeros(8, 1, 8, 8), torch.arange(8))
    seeds = set()
    for site in ("a", "b"):
        for server_round in (1, 2):
            client = MaskingClient(run, site, samples, samples, ContextState(RecordDict()))
            client.begin({"server-round": server_round})
            seeds.add(client.train(Weights.of(run.build_model())).seed)
    assert len(seeds) == 4


def test_a_value_that_the_rate_makes_infinite_is_one_sites_fault(small: Small) -> None:
    huge = with_arrays(lambda a: [a[0], np.full_like(a[1], 3e38), *a[2:]])
    record = run(small(method="masking", rounds=1, set=QUICK), TamperedGrid, tampers={0: huge})
    assert "times the rate" in record.metrics()[1]["rejected"]["partition-0"]


def test_a_rate_that_leaves_nothing_names_the_largest_and_that_one_is_possible(
    small: Small,
) -> None:
    with pytest.raises(ConfigError, match=r"the largest possible rate is \d+\.$") as refused:
        make_strategy(made(small, "masking.rate=1e7"))
    most = str(refused.value).rstrip(".").rpartition(" ")[2]
    assert masked_spec(made(small, f"masking.rate={most}")).total == int(most)
    with pytest.raises(ConfigError):
        masked_spec(made(small, f"masking.rate={int(most) + 1}"))


def test_running_variances_which_scaling_could_make_negative_are_refused(small: Small) -> None:
    with pytest.raises(ConfigError, match=r"model\.norm=instance, group or none"):
        make_strategy(made(small, "model.norm=batch masking.rate=2"))
    whole = made(small, "model.norm=batch masking.rate=1")  # nothing is scaled
    assert masked_spec(whole).total == length(whole.spec)
