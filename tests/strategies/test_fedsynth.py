"""FedSynth on the server: the replay, the average, and sites that send what leads nowhere."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch
from federation import TamperedGrid, numbers, resumed, run, same_end
from fedsynth_sites import QUICK, Small, by_torch, client, made, prepared, upload
from flwr.app import ArrayRecord, Message, RecordDict

from client_app.fedsynth import parameters
from common.errors import FederationError
from common.settings.fedsynth import FedSynthSettings
from common.specs.fedsynth import as_batches, spec_of
from common.wire.synthetic_batches import SyntheticBatches
from common.wire.weights import Weights
from server_app.checkpoint import Checkpoint
from server_app.synthetic_sets import load_sets
from strategies.fedsynth import FedSynth
from synth.synthetic_updates import loss_of, replay

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


def beyond(instruction: Message, reply: Message) -> Message:
    """Send numbers that are finite, and whose steps are not."""
    arrays = reply.content["arrays"].to_numpy_ndarrays()  # type: ignore[union-attr]
    arrays[1] = np.full_like(arrays[1], 3e38)
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": reply.content["metrics"]})
    return Message(content, reply_to=instruction)


def test_replaying_together_gives_the_same_run_and_rejects_the_same_site(small: Small) -> None:
    records = [
        run(
            small(
                method="fedsynth",
                set=f"{QUICK} fedsynth.replay={mode} fedsynth.steps=2 federation.max_pixel=0",
            ),
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
    # One step may end just below what float32 holds, by the order in which a processor adds; a second cannot.
    words = f"{QUICK} fedsynth.steps=2 fedsynth.replay={mode} federation.min_replies={4 - bad} "
    words += "federation.max_pixel=0"
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


def test_the_quorum_holds_for_what_a_method_inside_another_rejects(small: Small) -> None:
    words = f"{QUICK} fedsynth.steps=2 fedsynth.replay=vmap federation.min_replies=3 federation.max_pixel=0"
    words += " fedssyn.inner=fedsynth fedssyn.images=none"
    with pytest.raises(FederationError, match="round 1 has 2 valid replies where"):
        run(small(method="fedssyn", rounds=1, set=words), TamperedGrid, tampers={0: beyond})


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
    continued = resumed(part, 2)
    assert same_end(one, continued)


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
