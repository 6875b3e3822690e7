"""FedSynth on the device: what it sends, and the figures beside it."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from federation import run
from fedsynth_sites import QUICK, Small, client, digits, made, prepared, upload
from flwr.app import RecordDict
from torch import Tensor

from client_app import fedsynth as device_side
from client_app.fedavg import FedAvgClient
from client_app.fedsynth import FedSynthClient
from client_app.state import ContextState
from common.config.loading import load
from common.division import Division
from common.errors import FederationError
from common.learning.run import Run
from common.specs.fedsynth import SyntheticBatches, spec_of
from common.specs.updates import TAKEN
from common.wire.weights import Weights
from synth.synthetic_updates import Batches

# -- fidelity ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["", "fedsynth.objective=update wire.images=uint8"])
def test_the_figures_compare_the_servers_replay_with_fedavgs_own_training(
    small: Small, words: str
) -> None:
    """FedAvg's device trains from the same weights with the same draws, in a run of its own."""
    run_ = made(small, words)
    plain = Division(
        load(
            small(
                method="fedavg",
                set="model.name=mlp model.width=50 fedavg.lr=0.1 fedavg.batch=32 fedavg.epochs=1",
            )
        )
    ).run
    start = Weights.of(run_.build_model())
    device, data = client(run_), digits(run_)
    sent = device.synthesize(start)
    trainer = FedAvgClient(plain, "a", data, data, ContextState(RecordDict()))
    trainer.begin({"server-round": 1})
    trained = trainer.train(start).tensors
    ended = prepared(run_, start, upload(run_, sent))

    def moved(to: Any) -> np.ndarray:
        parts = [(to[k].double() - t.double()).flatten() for k, t in start.tensors.items()]
        return np.asarray(torch.cat(parts).numpy())

    a, b = moved(ended), moved(trained)
    cosine = float(a @ b / np.sqrt((a @ a) * (b @ b)))
    error = float(np.linalg.norm(a - b) / np.linalg.norm(b))
    assert device.round.figures["cosine"] == pytest.approx(cosine, rel=1e-4)
    assert device.round.figures["norm-error"] == pytest.approx(error, rel=1e-4)
    assert device.round.figures["train-loss"] == trainer.round.figures["train-loss"]


def test_without_fidelity_the_paper_s_objective_trains_nothing_and_sends_the_same(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = client(made(small))
    start = Weights.of(one.run.build_model())
    sent = one.synthesize(start)
    assert set(one.round.figures) == {"train-loss", "synthesis-loss", "cosine", "norm-error"}

    def train(*_: Any, **__: Any) -> None:
        raise AssertionError("trained")

    monkeypatch.setattr(device_side, "train_locally", train)
    other = client(made(small, "fedsynth.fidelity=off"))
    assert other.synthesize(start).encode()[1].tobytes() == sent.encode()[1].tobytes()
    assert torch.equal(other.synthesize(start).labels, sent.labels)
    assert set(other.round.figures) == {"synthesis-loss"}
    with pytest.raises(AssertionError, match="trained"):
        client(made(small, "fedsynth.fidelity=off fedsynth.objective=update")).synthesize(start)


def test_a_reference_that_diverges_costs_no_site_its_round(small: Small) -> None:
    record = run(small(method="fedsynth", rounds=1, set=f"{QUICK} fedsynth.lr=1e30"))
    line = record.metrics()[1]
    assert len(line["accepted"]) == 3
    assert not {"cosine", "norm-error"} & set(line["train"])
    assert math.isfinite(line["train"]["synthesis-loss"])


def test_a_set_that_leads_nowhere_is_rejected_for_that_and_not_for_a_figure(small: Small) -> None:
    words = (
        f"{QUICK} fedsynth.noise=1e30 fedsynth.step_size=1e6 fedsynth.steps=2 fedsynth.iterations=0 "
        "federation.max_pixel=0"
    )
    with pytest.raises(FederationError, match="lead to a weight") as ended:
        run(small(method="fedsynth", rounds=1, set=words))
    assert "metric" not in str(ended.value)


# -- what a device sends ----------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize(
    "words",
    [
        "fedsynth.start=statistics",
        "fedsynth.optimizer=sgd",
        "fedsynth.learn_step=on",
        "fedsynth.labels=fixed",
        "fedsynth.labels=raw",
        "fedsynth.real_batch=0",
        "fedsynth.objective=update",
        "fedsynth.objective=both",
        "fedsynth.steps=2 fedsynth.step_size=0.1",
    ],
)
def test_a_site_sends_what_it_moved_and_other_draws_move_other_sets(
    small: Small, words: str
) -> None:
    run_, still = made(small, words), made(small, f"{words} fedsynth.iterations=0")
    start = Weights.of(run_.build_model())
    spec = spec_of(run_)
    sent = client(run_).synthesize(start)
    assert sent.floats == spec.m * spec.b * (64 + 10 * spec.trained) + spec.learned_step
    assert sent.inputs.shape == (spec.m, spec.b, 1, 8, 8)
    again = client(made(small, words)).synthesize(start)
    assert torch.equal(again.inputs, sent.inputs)
    assert torch.equal(again.labels, sent.labels)
    began = client(still).synthesize(start)
    assert not torch.equal(began.inputs, sent.inputs)
    assert torch.equal(began.labels, sent.labels) != spec.trained
    if spec.learned_step:
        assert float(cast(Tensor, began.step_size)) == 1.0 != float(cast(Tensor, sent.step_size))
    others = [client(run_, "b"), client(run_, "a", 2), client(made(small, f"{words} seed=1"))]
    for other in others:
        assert not torch.equal(other.synthesize(start).inputs, sent.inputs)


def test_iterations_lower_what_they_are_to_lower(small: Small) -> None:
    """Judged on all of the site's images behind the replay, by a model of its own."""
    losses, cosines = {}, {}
    for iterations in (0, 40):
        words = f"fedsynth.iterations={iterations} fedsynth.synthetic_lr=0.1 fedsynth.rate=4"
        run_ = made(small, words)
        start, data = Weights.of(run_.build_model()), digits(run_)
        ended = prepared(run_, start, upload(run_, client(run_).synthesize(start)))
        model = run_.build_model()
        model.load_state_dict(ended)
        with torch.no_grad():
            losses[iterations] = float(
                F.cross_entropy(model(data.inputs(slice(None))), data.labels)
            )
        near = client(made(small, f"{words} fedsynth.objective=update"))
        near.synthesize(start)
        cosines[iterations] = near.round.figures["cosine"]
    assert losses[40] < 0.6 * losses[0]
    assert cosines[40] > cosines[0] + 0.2


def test_labels_are_of_the_sites_own_classes_by_their_frequency(small: Small) -> None:
    fixed = made(small, "fedsynth.labels=fixed fedsynth.rate=2")
    start = Weights.of(fixed.build_model())
    sent = client(fixed, data=digits(fixed, classes=(2, 7))).synthesize(start)
    assert set(sent.labels.flatten().tolist()) == {2, 7}
    soft = made(small, "fedsynth.iterations=0 fedsynth.label_height=3 fedsynth.rate=2")
    sent = client(soft, data=digits(soft, classes=(4,))).synthesize(start)
    assert torch.equal(sent.labels, (torch.arange(10) == 4).float().mul(3).expand_as(sent.labels))


def test_statistics_start_from_the_mean_image_of_each_class(small: Small) -> None:
    run_ = made(
        small,
        "fedsynth.start=statistics fedsynth.noise=0 fedsynth.iterations=0 fedsynth.labels=fixed",
    )
    data = digits(run_)
    sent = client(run_, data=data).synthesize(Weights.of(run_.build_model()))
    images = data.inputs(slice(None))
    for x, y in zip(sent.inputs.flatten(0, 1), sent.labels.flatten(), strict=True):
        assert torch.allclose(x, images[data.labels == y].mean(0), rtol=0, atol=1e-5)


def test_a_shared_start_is_the_same_at_every_site_and_round_and_another_runs_is_not(
    small: Small,
) -> None:
    words = "fedsynth.start=shared fedsynth.iterations=0"
    run_, data = made(small, words), digits(made(small), classes=(3,))
    start = Weights.of(run_.build_model())
    began = client(run_).synthesize(start)
    for other in (client(run_, "b", data=data), client(run_, "a", 7)):
        sent = other.synthesize(start)
        assert torch.equal(sent.inputs, began.inputs)
        assert torch.equal(sent.labels, began.labels)
    assert float(began.inputs.std()) > 0
    assert len(began.labels.argmax(-1).unique()) == began.labels.shape[:2].numel() <= 10
    another = client(made(small, f"{words} seed=1")).synthesize(start)
    assert not torch.equal(another.inputs, began.inputs)


def test_warm_begins_with_what_the_server_last_took(small: Small) -> None:
    """What is found in round 1 is round 2's start, and round 3's too where the server did not take round 2."""
    run_ = made(small, "fedsynth.warm=on fedsynth.learn_step=on")
    still = made(small, "fedsynth.warm=on fedsynth.learn_step=on fedsynth.iterations=0")
    start, data, state = Weights.of(run_.build_model()), digits(run_), ContextState(RecordDict())

    def sent_in(server_round: int, taken: int, of: Run) -> SyntheticBatches:
        site = FedSynthClient(of, "a", data, data, state)
        site.begin({"server-round": server_round, TAKEN: taken})
        sent = site.synthesize(start)
        site.round.end()
        return sent

    first = sent_in(1, 0, run_)
    second = sent_in(2, 1, still)
    moved = sent_in(3, 1, run_)
    for found, same in ((second, True), (moved, False)):
        assert torch.equal(found.inputs, first.inputs) is same
        assert torch.equal(found.labels, first.labels) is same
    assert float(cast(Tensor, second.step_size)) == float(cast(Tensor, first.step_size)) != 1.0
    cold = client(made(small, "fedsynth.learn_step=on fedsynth.iterations=0"), "a", 2)
    assert not torch.equal(cold.synthesize(start).inputs, second.inputs)


def test_a_learned_length_is_held_to_what_the_server_accepts(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand times the setting; a longer one would be refused on arrival."""
    run_ = made(small, "fedsynth.learn_step=on fedsynth.step_size=0.5 fedsynth.fidelity=off")
    plain = device_side.distil

    def far(*args: Any, **kwargs: Any) -> Any:
        found = plain(*args, **kwargs)
        s = found.batches
        return type(found)(Batches(s.inputs, s.labels, torch.tensor(1e9)), found.losses)

    monkeypatch.setattr(device_side, "distil", far)
    sent = client(run_).synthesize(Weights.of(run_.build_model()))
    assert upload(run_, sent).payload.step_size == 500.0  # type: ignore[attr-defined]


@pytest.mark.sweep
@pytest.mark.parametrize("m", [1, 5])
def test_what_a_coarser_codec_costs_the_replayed_update(small: Small, m: int) -> None:
    """The same distilled set through each codec, its update against that of float32."""
    words = (
        f"fedsynth.steps={m} fedsynth.rate=2 fedsynth.iterations=20 fedsynth.synthetic_lr=0.1 "
        "fedsynth.fidelity=off"
    )
    updates = {}
    for codec in ("float32", "float16", "uint8"):
        run_ = made(small, f"{words} wire.images={codec}")
        start = Weights.of(run_.build_model())
        ended = prepared(run_, start, upload(run_, client(run_).synthesize(start)))
        updates[codec] = torch.cat([(ended[k] - t).flatten() for k, t in start.tensors.items()])
    exact = updates["float32"]
    errors = {k: float((u - exact).norm() / exact.norm()) for k, u in updates.items()}
    assert 0 < errors["float16"] < 5e-3
    assert errors["float16"] < errors["uint8"] < 0.3


# -- privacy ----------------------------------------------------------------------------------------


def test_private_steps_do_not_follow_the_sites_own_number_where_counts_are_private(
    small: Small,
) -> None:
    """Sites of 96 and 60 examples draw each by 32 of the 100 that are public, and of their own by 32 of 96 or 60."""
    words = (
        "privacy.noise_multiplier=1 fedsynth.start=shared fedsynth.objective=loss "
        "fedsynth.fidelity=off privacy.counts="
    )
    rates = dict[str, list[float]]()
    for counts in ("one privacy.examples=100", "public"):
        run_ = made(small, words + counts)
        for few in (96, 60):
            one = client(run_, data=digits(run_, few))
            one.synthesize(Weights.of(run_.build_model()))
            assert one.round.charged is not None
            rates.setdefault(counts[:3], []).extend(e.sample_rate for e in one.round.charged.events)
    assert rates == {"one": [0.32, 0.32], "pub": [32 / 96, 32 / 60]}
