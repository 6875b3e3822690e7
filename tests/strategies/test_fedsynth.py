"""FedSynth on the server: the replay, the average, and sites that send what leads nowhere."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from federation import TamperedGrid, numbers, run
from fedsynth_sites import QUICK, Small, by_torch, client, made, prepared, upload
from hypothesis import example as for_one
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tampering import with_arrays
from torch import nn

from client_app.fedsynth import parameters
from common.config.loading import load
from common.data.published.catalogue import describe
from common.division import Division
from common.errors import ConfigError, FederationError
from common.learning.run import Run
from common.settings.fedsynth import FedSynthSettings
from common.specs.fedsynth import SyntheticBatches, as_batches, spec_of, step_loss
from common.wire.weights import Weights
from nectar.records.synthetic_sets import load_sets
from server_app.app import make_strategy
from server_app.checkpoint import Checkpoint
from strategies.exchange.replies import Upload
from strategies.fedsynth import FedSynth
from synth.synthetic_updates import client_update, loss_of

# -- the replay -------------------------------------------------------------------------------------

FORMS = {
    "trained labels": "",
    "fixed labels": "fedsynth.labels=fixed",
    "labels as they are": "fedsynth.labels=raw fedsynth.synthetic_lr=0.5",
    "several steps, one learned length": "fedsynth.steps=3 fedsynth.learn_step=on",
    "a network with normalisation": "model.name=convnet model.depth=1 model.width=32",
}


@pytest.mark.extended
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
    sent = device.synthesize(here.spec.decode(weights.encode()))
    assert (sent.step_size is not None) == ("learn_step" in words)

    model = device.model(weights)
    own = client_update(
        step_loss(here, model),
        parameters(model),
        as_batches(
            spec_of(here).decode(sent.encode()), device.settings(FedSynthSettings), here.device
        ),
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


@pytest.mark.extended
def test_the_replay_starts_from_the_weights_as_the_devices_read_them(small: Small) -> None:
    """With halved weights a device steps from rounded ones; what it moved is added to the server's own."""
    run_ = made(small, "wire.weights=float16")
    start = Weights.of(run_.build_model(), "float16")
    read = run_.spec.decode(start.encode())
    assert any(not torch.equal(read.tensors[k], t) for k, t in start.tensors.items())
    device = client(run_)
    sent = device.synthesize(read)
    model = device.model(read)
    batches = as_batches(
        spec_of(run_).decode(sent.encode()), device.settings(FedSynthSettings), run_.device
    )
    own = client_update(loss_of(model, run_.task.loss), parameters(model), batches)
    ended = prepared(run_, start, upload(run_, sent))
    assert all(torch.equal(ended[name], own[name]) for name in own)
    server = FedSynth(made(small, "wire.weights=float16"))
    server.begin(1, start)
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


#: numbers that are finite, and whose steps are not
beyond = with_arrays(lambda a: [a[0], np.full_like(a[1], 3e38), *a[2:]])


def test_a_site_whose_set_leads_nowhere_is_rejected_and_the_others_learn(small: Small) -> None:
    words = f"{QUICK} fedsynth.steps=2 federation.max_pixel=0"
    record = run(small(method="fedsynth", set=words), TamperedGrid, tampers={1: beyond})
    for line in record.metrics()[1:]:
        assert line["accepted"] == ["partition-0", "partition-2"]
        assert "lead to a weight" in line["rejected"]["partition-1"]
        assert line["floats_up"] == 2 * 2 * 1 * 74
    assert list(load_sets(record.last_sets)[1]) == ["partition-0", "partition-2"]


@pytest.mark.parametrize("bad", [1, 3])
def test_too_few_sets_that_lead_anywhere_end_the_run_with_the_reasons(
    small: Small, bad: int
) -> None:
    # One step may end just below what float32 holds, by the order in which a processor adds; a second cannot.
    words = f"{QUICK} fedsynth.steps=2 federation.min_replies={4 - bad} "
    words += "federation.max_pixel=0"
    with pytest.raises(FederationError) as ended:
        run(
            small(method="fedsynth", rounds=1, set=words),
            TamperedGrid,
            tampers=dict.fromkeys(range(bad), beyond),
        )
    message = str(ended.value)
    assert f"round 1 has {3 - bad} valid replies" in message
    assert message.count("lower fedsynth.step_size or fedsynth.synthetic_lr") == 1
    who = f"partition-0 and {bad - 1} more" if bad > 1 else "partition-0"
    assert f"{who}: its synthetic batches lead to a weight 'features.1.weight'" in message


def test_the_quorum_holds_for_what_a_method_inside_another_rejects(small: Small) -> None:
    words = f"{QUICK} fedsynth.steps=2 federation.min_replies=3 federation.max_pixel=0"
    words += " fedssyn.inner=fedsynth fedssyn.source=none"
    with pytest.raises(FederationError, match="round 1 has 2 valid replies where"):
        run(small(method="fedssyn", rounds=1, set=words), TamperedGrid, tampers={0: beyond})


@pytest.mark.extended
def test_a_run_learns_and_is_the_same_twice(small: Small) -> None:
    words = (
        f"{QUICK} fedsynth.rate=4 fedsynth.iterations=20 fedsynth.synthetic_lr=0.1 "
        "evaluation.on=both data.site_holdout=0.2 wire.images=uint8"
    )
    keys = {"method": "fedsynth", "set": words}
    one, other = (run(small(**keys)) for _ in range(2))
    assert numbers(one) == numbers(other)
    lines = one.metrics()
    assert lines[2]["test"]["accuracy"] > lines[0]["test"]["accuracy"] + 0.2
    assert lines[2]["sites"]["accuracy"] > lines[0]["test"]["accuracy"] + 0.2
    figures = {"train-loss", "synthesis-loss", "cosine", "norm-error"}
    assert set(lines[1]["train"]) == figures


def test_a_run_in_bfloat16_trains_its_reference_in_it_and_replays_in_float32(small: Small) -> None:
    words = "compute.precision=bfloat16"
    half, full = made(small, words), made(small)
    w = Weights.of(full.build_model())
    one, other = client(half), client(full)
    assert torch.equal(one.synthesize(w).inputs, other.synthesize(w).inputs)
    assert one.round.figures["train-loss"] != other.round.figures["train-loss"]
    assert one.round.figures["train-loss"] == pytest.approx(
        other.round.figures["train-loss"], rel=0.05
    )


# ---- what cannot be is refused before any work -------------------------------------------------------


# -- what cannot be ---------------------------------------------------------------------------------


def test_trained_labels_are_refused_for_text(reddit_config: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"2000 numbers for every token of reddit2k: set feds"):
        make_strategy(Division(load(reddit_config(method="fedsynth"))).run)


def budget(parameters_: int, example: int, **settings: Any) -> Run:
    """Return what ``spec_of`` reads of a run whose model has so many parameters, and inputs of so many floats."""
    model = nn.Linear(parameters_, 1, bias=False, device="meta")
    model.continuous_shape = (example, 1, 1)
    made_ = SimpleNamespace(
        info=replace(describe("digits"), shape=(example, 1, 1)),
        build_model=lambda: model,
        settings=lambda _: FedSynthSettings(**settings),
        config=SimpleNamespace(dataset="made-up"),
    )
    return cast(Run, made_)


sizes = st.integers(1, 20_000_000), st.integers(1, 3000), st.integers(1, 60)
kinds = st.sampled_from(["trained", "fixed"]), st.booleans()


@pytest.mark.extended
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


@pytest.mark.extended
@hypothesis_settings(deadline=None)
@given(*sizes, *kinds)
@for_one(26_202_306, 2369, 5, "trained", False)  # 2202.8, at which floats leave no example
def test_the_largest_rate_that_a_refusal_names_is_possible_and_a_tenth_more_is_not(
    total: int, example: int, m: int, labels: str, learn: bool
) -> None:
    given_ = {"steps": m, "labels": labels, "learn_step": learn}
    with pytest.raises(ConfigError) as refused:
        spec_of(budget(total, example, rate=1e9, **given_))
    message = str(refused.value)
    each = example + (10 if labels == "trained" else 0)
    if m * each + learn > total:
        assert "no rate would" in message
        return
    named = message.removesuffix(".").rpartition(" ")[2]
    assert spec_of(budget(total, example, rate=float(named), **given_)).b == 1
    more = float(Fraction(named) + Fraction(1, 10))
    with pytest.raises(ConfigError):
        spec_of(budget(total, example, rate=more, **given_))


def test_the_training_it_is_held_against_is_the_one_that_files_tell_fedavg(small: Small) -> None:
    given_ = small(method="fedsynth", set=f"{QUICK} fedavg.momentum=0.5 fedavg.lr=0.7")
    settings = load(given_).settings
    assert isinstance(settings, FedSynthSettings)
    assert (settings.momentum, settings.lr, settings.weighting) == (0.5, 0.1, "uniform")


# ---- text: vectors in place of tokens ----------------------------------------------------------------


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


def text_config(reddit_config: Callable[..., Any], words: str = "") -> dict[str, Any]:
    keys = reddit_config(method="fedsynth")
    plain = " ".join(w for w in keys["set"].split() if not w.startswith("fedavg."))
    return {**keys, "set": f"{plain} {TEXT} {words}"}


@pytest.mark.extended
def test_a_language_model_learns_from_sequences_of_vectors(
    reddit_config: Callable[..., Any], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a tied output every parameter moves; the targets are tokens that the site's texts hold, never PAD."""
    sets: list[SyntheticBatches] = []
    plain = FedSynth.prepare

    def keep(self: FedSynth, server_round: int, weights: Weights, arrived: Upload) -> Upload:
        sets.append(cast(SyntheticBatches, arrived.payload))
        return plain(self, server_round, weights, arrived)

    monkeypatch.setattr(FedSynth, "prepare", keep)
    config = text_config(reddit_config)
    record = run(config)
    losses = [line["test"]["loss"] for line in record.metrics()]
    assert losses[2] < losses[1] < losses[0]
    setup = Division(load(config)).run
    held = set(np.unique(Division(setup.config).dataset.train.labels).tolist()) - {0}
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


@pytest.mark.extended
def test_vectors_cannot_move_an_embedding_of_its_own_and_the_log_says_so_once(
    reddit_config: Callable[..., Any], said: list[str]
) -> None:
    config = text_config(reddit_config, "model.tied=off")
    record = run(config)
    start = Division(load(config)).run.build_model().state_dict()
    end = Checkpoint.load(record.last).weights
    stayed = [name for name in start if torch.equal(start[name], end[name])]
    assert stayed == ["embedding.weight"]
    (warning,) = [line for line in said if "no synthetic batch moved" in line]
    assert "no synthetic batch moved embedding.weight:" in warning
