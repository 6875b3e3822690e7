"""FedSynth from the site's distillation to the server's update: what is sent, replayed, averaged, refused and told."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from federation import TamperedGrid, numbers, run
from flwr.app import ArrayRecord, Message, RecordDict
from hypothesis import example as for_one
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from test_next_token import asked, texts
from torch import Tensor, nn

from client_app import fedsynth as device_side
from client_app.fedavg import FedAvgClient
from client_app.fedsynth import FedSynthClient, parameters
from common.config import load
from common.data import Samples, describe, samples
from common.device_state import ContextState
from common.errors import ConfigError, FederationError
from common.run import Run
from common.settings.fedsynth import FedSynthSettings
from common.sites import Site
from common.synthetic_budget import as_batches, spec_of
from common.wire import SyntheticBatches, Weights
from server_app import cli
from server_app.app import make_strategy
from server_app.checkpoint import Checkpoint
from server_app.resume import with_recorded
from server_app.synthetic_sets import load_sets
from strategies.fedsynth import FedSynth
from strategies.replies import Upload
from synth.synthetic_updates import Batches, loss_of, replay

Small = Callable[..., dict[str, Any]]

__all__ = ["asked", "texts"]  # fixtures: a tiny data set of text

#: 3,760 parameters, of which a 16th is 3 examples of 64 pixels and 10 logits
QUICK = (
    "model.name=mlp model.width=50 fedsynth.rate=16 fedsynth.iterations=3 fedsynth.epochs=1 "
    "fedsynth.real_batch=32 fedsynth.batch=32 fedsynth.lr=0.1"
)


def made(small: Small, words: str = "") -> Run:
    return Run(load(small(method="fedsynth", set=f"{QUICK} {words}")))


def digits(run_: Run, few: int = 96, classes: tuple[int, ...] = ()) -> Samples:
    """Return the first training images, or those among them of ``classes``."""
    labels = run_.dataset.train.labels
    of = np.flatnonzero(np.isin(labels, classes)) if classes else np.arange(len(labels))
    return samples(run_.dataset.train, run_.info, of[:few])


def client(
    run_: Run, site: str = "a", server_round: int = 1, data: Samples | None = None
) -> FedSynthClient:
    data = digits(run_) if data is None else data
    made_ = FedSynthClient(run_, site, data, data, ContextState(RecordDict()))
    made_.server_round = server_round
    return made_


def upload(run_: Run, sent: SyntheticBatches, site: str = "a", examples: int = 96) -> Upload:
    """Return what the server reads of a set that was sent."""
    arrived = SyntheticBatches.decode(sent.encode("zlib"), spec_of(run_))
    return Upload(Site(site, 1, examples), arrived, examples, {})


def by_torch(run_: Run, start: Weights, sent: SyntheticBatches) -> dict[str, Tensor]:
    """Return the model behind ``sent``, by torch's own optimiser in float64."""
    model = run_.build_model().double()
    model.load_state_dict({name: value.double() for name, value in start.tensors.items()})
    settings = run_.config.settings
    assert isinstance(settings, FedSynthSettings)
    lr = settings.step_size if sent.step_size is None else float(sent.step_size)
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for x, y in zip(sent.inputs.double(), sent.labels, strict=True):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y.double().softmax(-1) if sent.trained else y).backward()
        optimiser.step()
    return {name: p.detach() for name, p in model.named_parameters()}


def prepared(run_: Run, weights: Weights, arrived: Upload) -> dict[str, Tensor]:
    ready = FedSynth(run_).prepare(1, weights, arrived).payload
    assert isinstance(ready, Weights)
    return dict(ready.tensors)


# -- the replay -------------------------------------------------------------------------------------

FORMS = {
    "trained labels": "",
    "fixed labels": "fedsynth.labels=fixed",
    "several steps, one learned length": "fedsynth.steps=3 fedsynth.learn_step=on",
    "a network with normalisation": "model.name=convnet model.depth=1 model.width=32",
}


@pytest.mark.parametrize("codec", ["float32", "float16", "uint8"])
@pytest.mark.parametrize("form", FORMS)
def test_the_server_replays_what_a_device_sent_to_the_devices_own_bits(
    small: Small, codec: str, form: str
) -> None:
    """Each side builds its run of the configuration, and the server only has what came over the wire."""
    words = f"{FORMS[form]} wire.images={codec}"
    here, there = made(small, words), made(small, words)
    weights = Weights.of(here.build_model())
    device = client(here)
    sent = device.synthesize(Weights.decode(weights.encode(), here.spec))
    assert (sent.step_size is not None) == ("learn_step" in words)

    model = device.model(weights)
    own = replay(
        loss_of(model, here.task.loss),
        parameters(model),
        as_batches(sent.as_sent(spec_of(here)), device.settings(FedSynthSettings), here.device),
    )
    arrived = upload(there, sent)
    ended = prepared(there, weights, arrived)
    assert ended.keys() == own.keys()
    assert all(torch.equal(ended[name], own[name]) for name in own)
    assert isinstance(arrived.payload, SyntheticBatches)
    steps = by_torch(there, weights, arrived.payload)
    for name, value in ended.items():
        assert torch.allclose(value.double(), steps[name], rtol=0, atol=1e-5), name
        assert not torch.equal(value, weights.tensors[name])


def test_the_replay_starts_from_the_weights_as_the_devices_read_them(small: Small) -> None:
    """With halved weights a device steps from rounded ones; what it moved is added to the server's own."""
    run_ = made(small, "wire.weights=float16")
    start = Weights.of(run_.build_model(), "float16")
    read = Weights.decode(start.encode(), run_.spec)
    assert any(not torch.equal(read.tensors[k], t) for k, t in start.tensors.items())
    device = client(run_)
    sent = device.synthesize(read)
    model = device.model(read)
    batches = as_batches(
        sent.as_sent(spec_of(run_)), device.settings(FedSynthSettings), run_.device
    )
    own = replay(loss_of(model, run_.task.loss), parameters(model), batches)
    ended = prepared(run_, start, upload(run_, sent))
    assert all(torch.equal(ended[name], own[name]) for name in own)
    for mode in ("loop", "vmap"):
        server = FedSynth(made(small, f"wire.weights=float16 fedsynth.replay={mode}"))
        server.outcome.accept(upload(run_, sent))
        new = server.update(1, start, iter([server.prepare(1, start, upload(run_, sent))]))
        for name, t in start.tensors.items():
            expected = t.double() + (own[name].double() - read.tensors[name].double())
            assert torch.allclose(new.tensors[name].double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("weighting", ["uniform", "counts"])
def test_the_update_of_two_sites_by_hand(small: Small, weighting: str) -> None:
    run_ = made(small, f"fedsynth.weighting={weighting}")
    start = Weights.of(run_.build_model())
    uploads = [
        upload(run_, client(run_, site).synthesize(start), site, examples)
        for site, examples in (("a", 10), ("b", 30))
    ]
    server = FedSynth(run_)
    new = server.update(1, start, iter([server.prepare(1, start, u) for u in uploads]))
    shares = (0.5, 0.5) if weighting == "uniform" else (0.25, 0.75)
    a, b = (by_torch(run_, start, cast(SyntheticBatches, u.payload)) for u in uploads)
    for name, old in start.tensors.items():
        w = old.double()
        expected = w + shares[0] * (a[name] - w) + shares[1] * (b[name] - w)
        assert torch.allclose(new.tensors[name].double(), expected, rtol=0, atol=2e-6), name
        assert float((expected - w).norm()) > 1e-3


# -- a run, and sites that send what leads nowhere --------------------------------------------------


def beyond(instruction: Message, reply: Message) -> Message:
    """Send numbers that are finite, and whose steps are not."""
    arrays = reply.content["arrays"].to_numpy_ndarrays()  # type: ignore[union-attr]
    arrays[1] = np.full_like(arrays[1], 3e38)
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": reply.content["metrics"]})
    return Message(content, reply_to=instruction)


def test_replaying_together_gives_the_same_run_and_rejects_the_same_site(small: Small) -> None:
    records = [
        run(
            small(method="fedsynth", set=f"{QUICK} fedsynth.replay={mode} fedsynth.steps=2"),
            TamperedGrid,
            tampers={1: beyond},
        )
        for mode in ("loop", "vmap")
    ]
    loop, vmap = (r.metrics() for r in records)
    for line, other in zip(loop[1:], vmap[1:], strict=True):
        assert line["accepted"] == other["accepted"] == ["partition-0", "partition-2"]
        assert line["rejected"] == other["rejected"]
        assert "lead to a weight" in line["rejected"]["partition-1"]
        assert line["floats_up"] == other["floats_up"] == 2 * 2 * 1 * 74
        assert line["test"]["loss"] == pytest.approx(other["test"]["loss"], rel=1e-4)
        assert line["train"]["cosine"] == pytest.approx(other["train"]["cosine"], abs=1e-4)
    one, two = (Checkpoint.load(r.last).weights for r in records)
    for name, tensor in one.items():
        assert torch.allclose(tensor, two[name], rtol=0, atol=1e-6), name
    for record in records:
        assert list(load_sets(record.last_sets)[1]) == ["partition-0", "partition-2"]


@pytest.mark.parametrize("mode", ["loop", "vmap"])
@pytest.mark.parametrize("bad", [1, 3])
def test_too_few_sets_that_lead_anywhere_end_the_run_with_the_reasons(
    small: Small, mode: str, bad: int
) -> None:
    words = f"{QUICK} fedsynth.replay={mode} federation.min_replies={4 - bad}"
    with pytest.raises(FederationError) as ended:
        run(
            small(method="fedsynth", rounds=1, set=words),
            TamperedGrid,
            tampers=dict.fromkeys(range(bad), beyond),
        )
    said = str(ended.value)
    assert f"round 1 has {3 - bad} valid replies" in said
    assert said.count("lower fedsynth.step_size or fedsynth.synthetic_lr") == bad
    assert "partition-0: its synthetic batches lead to a weight 'features.1.weight'" in said


def test_a_run_learns_is_the_same_twice_and_continues_where_it_stopped(small: Small) -> None:
    words = (
        f"{QUICK} fedsynth.rate=4 fedsynth.iterations=20 fedsynth.synthetic_lr=0.1 "
        "evaluation.on=both data.site_holdout=0.2 wire.images=uint8 wire.compression=zlib"
    )
    keys = {"method": "fedsynth", "set": words}
    one, other = (run(small(**keys)) for _ in range(2))
    assert numbers(one) == numbers(other)
    lines = one.metrics()
    assert lines[2]["test"]["accuracy"] > lines[0]["test"]["accuracy"] + 0.2
    assert lines[2]["sites"]["accuracy"] > lines[0]["test"]["accuracy"] + 0.2
    figures = {"train-loss", "synthesis-loss", "cosine", "norm-error"}
    assert set(lines[1]["train"]) == figures
    part = run(small(**{**keys, "rounds": 1}))
    continued = run(with_recorded({"resume": str(part.directory), "rounds": 2}))
    ends = [Checkpoint.load(r.last).weights for r in (one, continued)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_run_in_bfloat16_trains_its_reference_in_it_and_replays_in_float32(small: Small) -> None:
    words = "compute.precision=bfloat16"
    half, full = made(small, words), made(small)
    w = Weights.of(full.build_model())
    one, other = client(half), client(full)
    assert torch.equal(one.synthesize(w).inputs, other.synthesize(w).inputs)
    assert one._metrics["train-loss"] != other._metrics["train-loss"]
    assert one._metrics["train-loss"] == pytest.approx(other._metrics["train-loss"], rel=0.05)


# -- what cannot be ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "fedsynth.rate=51",
            "fedsynth.rate=51 leaves no example in each of fedsynth.steps=1 batches, at 74 floats an example",
        ),
        ("fedsynth.rate=1 fedsynth.steps=51", "no rate would: lower fedsynth.steps or take a larg"),
        ("model.width=1 fedsynth.learn_step=on fedsynth.rate=2", "the largest possible rate is 1."),
        ("model.name=convnet model.norm=batch", "choose model.norm=instance, group or none"),
    ],
)
def test_a_run_that_cannot_be_is_refused_with_what_to_do(
    small: Small, words: str, said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        make_strategy(made(small, words))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_trained_labels_are_refused_for_text(asked: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"2000 numbers for every token of reddit2k: set feds"):
        make_strategy(Run(load(asked(method="fedsynth"))))


@pytest.mark.parametrize(
    "words",
    [
        ["fedsynth.rate=1e9"],
        ["fedsynth.steps=100000"],
        ["model.norm=batch"],
    ],
)
def test_an_impossible_run_ends_the_command_before_any_work(
    tmp_path: Any, capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    output = tmp_path / "runs"
    assert cli.main(["run", "method=fedsynth", *words, f"output-dir={output}"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("nectar: ")
    assert line.endswith(".")
    assert not output.exists()


def budget(parameters_: int, example: int, **settings: Any) -> Run:
    """Return what ``spec_of`` reads of a run whose model has so many parameters, and inputs of so many floats."""
    model = nn.Linear(parameters_, 1, bias=False, device="meta")
    model.continuous_shape = (example, 1, 1)
    made_ = SimpleNamespace(
        info=replace(describe("digits"), shape=(example, 1, 1)),
        build_model=lambda: model,
        config=SimpleNamespace(settings=FedSynthSettings(**settings), dataset="made-up"),
    )
    return cast(Run, made_)


sizes = st.integers(1, 20_000_000), st.integers(1, 3000), st.integers(1, 60)
kinds = st.sampled_from(["trained", "fixed"]), st.booleans()


@hypothesis_settings(deadline=None)
@given(*sizes, st.floats(1, 1000), *kinds)
@for_one(504_972, 159, 18, 8.3, "trained", False)  # 20 examples, of which floats lose one
def test_as_many_examples_are_sent_as_the_rate_pays_for_and_no_fewer(
    total: int, example: int, m: int, rate: float, labels: str, learn: bool
) -> None:
    run_ = budget(total, example, rate=rate, steps=m, labels=labels, learn_step=learn)
    room = Fraction(total) / Fraction(str(rate))
    each = example + (10 if labels == "trained" else 0)
    try:
        b = spec_of(run_).b
    except ConfigError:
        b = 0
    assert b == 0 or m * b * each + learn <= room
    assert m * (b + 1) * each + learn > room


@hypothesis_settings(deadline=None)
@given(*sizes, *kinds)
@for_one(26_202_306, 2369, 5, "trained", False)  # 2202.8, at which floats leave no example
def test_the_largest_rate_that_a_refusal_names_is_possible_and_a_tenth_more_is_not(
    total: int, example: int, m: int, labels: str, learn: bool
) -> None:
    given_ = {"steps": m, "labels": labels, "learn_step": learn}
    with pytest.raises(ConfigError) as refused:
        spec_of(budget(total, example, rate=1e9, **given_))
    said = str(refused.value)
    each = example + (10 if labels == "trained" else 0)
    if m * each + learn > total:
        assert "no rate would" in said
        return
    named = said.removesuffix(".").rpartition(" ")[2]
    assert spec_of(budget(total, example, rate=float(named), **given_)).b == 1
    more = float(Fraction(named) + Fraction(1, 10))
    with pytest.raises(ConfigError):
        spec_of(budget(total, example, rate=more, **given_))


def test_the_training_it_is_held_against_is_the_one_that_files_tell_fedavg(small: Small) -> None:
    given_ = small(method="fedsynth", set=f"{QUICK} fedavg.momentum=0.5 fedavg.lr=0.7")
    settings = load(given_).settings
    assert isinstance(settings, FedSynthSettings)
    assert (settings.momentum, settings.lr, settings.weighting) == (0.5, 0.1, "uniform")


# -- fidelity ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["", "fedsynth.objective=update wire.images=uint8"])
def test_the_figures_compare_the_servers_replay_with_fedavgs_own_training(
    small: Small, words: str
) -> None:
    """FedAvg's device trains from the same weights with the same draws, in a run of its own."""
    run_ = made(small, words)
    plain = Run(
        load(
            small(
                method="fedavg",
                set="model.name=mlp model.width=50 fedavg.lr=0.1 fedavg.batch=32 fedavg.epochs=1",
            )
        )
    )
    start = Weights.of(run_.build_model())
    device, data = client(run_), digits(run_)
    sent = device.synthesize(start)
    trainer = FedAvgClient(plain, "a", data, data, ContextState(RecordDict()))
    trainer.server_round = 1
    trained = trainer.train(start).tensors
    ended = prepared(run_, start, upload(run_, sent))

    def moved(to: Any) -> np.ndarray:
        parts = [(to[k].double() - t.double()).flatten() for k, t in start.tensors.items()]
        return np.asarray(torch.cat(parts).numpy())

    a, b = moved(ended), moved(trained)
    cosine = float(a @ b / np.sqrt((a @ a) * (b @ b)))
    error = float(np.linalg.norm(a - b) / np.linalg.norm(b))
    assert device._metrics["cosine"] == pytest.approx(cosine, rel=1e-4)
    assert device._metrics["norm-error"] == pytest.approx(error, rel=1e-4)
    assert device._metrics["train-loss"] == trainer._metrics["train-loss"]


def test_without_fidelity_the_paper_s_objective_trains_nothing_and_sends_the_same(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = client(made(small))
    start = Weights.of(one.run.build_model())
    sent = one.synthesize(start)
    assert set(one._metrics) == {"train-loss", "synthesis-loss", "cosine", "norm-error"}

    def train(*_: Any, **__: Any) -> None:
        raise AssertionError("trained")

    monkeypatch.setattr(device_side, "train_locally", train)
    other = client(made(small, "fedsynth.fidelity=off"))
    assert other.synthesize(start).encode()[1].tobytes() == sent.encode()[1].tobytes()
    assert torch.equal(other.synthesize(start).labels, sent.labels)
    assert set(other._metrics) == {"synthesis-loss"}
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
        f"{QUICK} fedsynth.noise=1e30 fedsynth.step_size=1e6 fedsynth.steps=2 fedsynth.iterations=0"
    )
    with pytest.raises(FederationError, match="lead to a weight") as ended:
        run(small(method="fedsynth", rounds=1, set=words))
    assert "metric" not in str(ended.value)


# -- what a device sends ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "fedsynth.start=statistics",
        "fedsynth.optimizer=sgd",
        "fedsynth.learn_step=on",
        "fedsynth.labels=fixed",
        "fedsynth.real_batch=0",
        "fedsynth.objective=update",
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
        cosines[iterations] = near._metrics["cosine"]
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


# -- text -------------------------------------------------------------------------------------------

TEXT = (
    "fedsynth.labels=fixed fedsynth.rate=20 fedsynth.iterations=5 fedsynth.epochs=1 fedsynth.batch=5 "
    "fedsynth.lr=5 fedsynth.step_size=5"
)


@pytest.fixture
def said() -> Iterator[list[str]]:
    """Collect what is logged."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Keep()
    logging.getLogger("flwr").addHandler(handler)
    yield lines
    logging.getLogger("flwr").removeHandler(handler)


def text_config(asked: Callable[..., Any], words: str = "") -> dict[str, Any]:
    keys = asked(method="fedsynth")
    plain = " ".join(w for w in keys["set"].split() if not w.startswith("fedavg."))
    return {**keys, "set": f"{plain} {TEXT} {words}"}


def test_a_language_model_learns_from_sequences_of_vectors(
    asked: Callable[..., Any], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a tied output every parameter moves; the targets are tokens that the site's texts hold, never PAD."""
    sets: list[SyntheticBatches] = []
    plain = FedSynth.prepare

    def keep(self: FedSynth, server_round: int, weights: Weights, arrived: Upload) -> Upload:
        sets.append(cast(SyntheticBatches, arrived.payload))
        return plain(self, server_round, weights, arrived)

    monkeypatch.setattr(FedSynth, "prepare", keep)
    config = text_config(asked)
    record = run(config)
    losses = [line["test"]["loss"] for line in record.metrics()]
    assert losses[2] < losses[1] < losses[0]
    setup = Run(load(config))
    held = set(np.unique(setup.dataset.train.labels).tolist()) - {0}
    assert len(sets) == 8
    for sent in sets:
        assert sent.inputs.shape[2:] == (10, 8)
        assert sent.labels.shape[2:] == (10,)
        assert set(sent.labels.unique().tolist()) <= held
        assert sent.floats == sent.inputs.numel() <= Weights.of(setup.build_model()).floats / 20
    start, end = setup.build_model().state_dict(), Checkpoint.load(record.last).weights
    assert all(not torch.equal(start[name], end[name]) for name in start)
    assert not any("no synthetic batch moved" in line for line in said)
    assert json.loads((record.directory / "partition.json").read_text())["classes"] == []


def test_vectors_cannot_move_an_embedding_of_its_own_and_the_log_says_so_once(
    asked: Callable[..., Any], said: list[str]
) -> None:
    config = text_config(asked, "model.tied=off")
    record = run(config)
    start = Run(load(config)).build_model().state_dict()
    end = Checkpoint.load(record.last).weights
    stayed = [name for name in start if torch.equal(start[name], end[name])]
    assert stayed == ["embedding.weight"]
    (warning,) = [line for line in said if "no synthetic batch moved" in line]
    assert "no synthetic batch moved embedding.weight:" in warning
