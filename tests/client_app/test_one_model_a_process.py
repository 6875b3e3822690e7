"""Models and weights that a process reuses: every method's numbers are those of devices that share nothing."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import numbers, run, same_end
from flwr.app import Array
from real_site import Site
from small import Small
from torch import nn

import client_app.app
import strategies.exchange.replies
from client_app.decode_cache import DecodeCache
from common import models
from common.errors import PayloadError
from common.models.building import ModelTemplate
from common.wire import frame, npy
from common.wire.bundle import Bundle, BundleSpec
from common.wire.form import Payload, TensorSpec
from common.wire.npy import array_of, lazy_array_of, record_of
from common.wire.tensors import Tensors, TensorsSpec
from common.wire.weights import CopyOnWriteTensors, Weights, WeightsSpec

# ---- models -----------------------------------------------------------------------------------------------


def a_model(name: str = "convnet", norm: str = "batch", **given: Any) -> models.Classifier:
    shape = {"lstm": (12,), "conv1d": (3, 1, 32)}.get(name, (3, 32, 32))
    return models.build(name, shape, 10, depth=2, width=8, norm=norm, **given)


@pytest.mark.parametrize("name", models.MODELS)
@pytest.mark.parametrize("projection", [0, 4])
def test_a_cast_shares_nothing_that_can_be_changed(name: str, projection: int) -> None:
    if name == "lstm":
        projection = 0
    for module in a_model(name, projection=projection).modules():
        for value in attributes(module).values():
            assert is_constant(value) or value in ({}, set())


def is_constant(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(is_constant, value))
    return isinstance(value, int | float | str | type(None) | torch.dtype)


@pytest.mark.parametrize("name", ["convnet", "cnn", "mlp", "resnet18", "vit", "lstm", "vae"])
def test_a_cast_is_as_a_model_that_was_built_and_loaded(name: str) -> None:
    """A tied LSTM has one matrix in two layers; a VAE's encoder has normalisation of its own."""
    weights = {
        n: torch.rand_like(t.float()).to(t.dtype) for n, t in a_model(name).state_dict().items()
    }
    plain, mould = a_model(name), ModelTemplate(a_model(name))
    plain.load_state_dict(weights)
    assert mould.covers(weights)
    assert same(mould.instantiate(weights), plain)


def same(one: nn.Module, other: nn.Module) -> bool:
    """Whether two models agree in all that a module has: types, attributes, values, flags, what is shared."""
    pairs = list(zip(one.modules(), other.modules(), strict=True))
    states = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return (
        all(type(a) is type(b) and attributes(a) == attributes(b) for a, b in pairs)
        and all(n == m and a.dtype == b.dtype and torch.equal(a, b) for (n, a), (m, b) in states)
        and [n for n, _ in one.named_parameters()] == [n for n, _ in other.named_parameters()]
        and all(p.requires_grad and p.grad is None for p in one.parameters())
    )


def attributes(module: nn.Module) -> dict[str, Any]:
    apart = ("_parameters", "_buffers", "_modules")
    return {name: value for name, value in vars(module).items() if name not in apart}


def test_a_buffer_outside_of_the_state_is_each_casts_own() -> None:
    """Such as a table of positions, which no weights bring along; here two layers share it, and one lacks a bias."""
    model = a_model("mlp")
    table = torch.arange(3.0)
    model.register_buffer("table", table, persistent=False)
    model.head.register_buffer("same", table, persistent=False)
    model.head.bias = None
    mould, weights = (
        ModelTemplate(model),
        {n: torch.ones(t.shape) for n, t in model.state_dict().items()},
    )
    one, other = mould.instantiate(weights), mould.instantiate(weights)
    assert one.table is one.head.same
    assert one.head.bias is None
    one.table.zero_()
    assert torch.equal(other.table, table)


def test_whatever_is_done_to_a_cast_the_next_one_is_as_new() -> None:
    weights = dict(a_model().state_dict())
    mould = ModelTemplate(a_model())
    first, untouched = mould.instantiate(weights), mould.instantiate(weights)
    first.eval().requires_grad_(False)
    first.head.register_forward_hook(lambda *_: None)
    first.note = torch.ones(1)
    first.head.extra = nn.Linear(1, 1)
    for value in first.state_dict().values():
        value.zero_()
    assert same(mould.instantiate(weights), untouched)
    assert all(torch.equal(weights[name], t) for name, t in untouched.state_dict().items())


@pytest.mark.parametrize("name", ["convnet", "lstm", "vae"])
def test_a_model_that_was_handed_over_serves_the_next_caller_and_keeps_nothing(name: str) -> None:
    weights = dict(a_model(name).state_dict())
    mould = ModelTemplate(a_model(name))
    lent, untouched = mould.instantiate(weights), mould.instantiate(weights)
    for value in lent.state_dict().values():
        value.add_(1)
    for round_ in (1, 2):
        state = mould.hand_over(lent)
        assert state.keys() == weights.keys()
        assert all(torch.equal(value, weights[n] + (round_ == 1)) for n, value in state.items())
        assert not any(value.numel() for value in lent.state_dict().values())
        assert mould.instantiate(weights) is lent
        assert same(lent, untouched)
        assert all(torch.equal(v, weights[n] + (round_ == 1)) for n, v in state.items())
    assert mould.instantiate(weights) is not lent


def test_weights_that_are_not_all_of_the_model_are_not_cast(small: Small) -> None:
    mould, state = ModelTemplate(a_model()), dict(a_model().state_dict())
    del state["head.bias"]
    assert not mould.covers(state)
    assert not mould.covers({**state, "head.bias": torch.zeros(3)})
    assert not mould.covers({**state, "another": torch.zeros(10)})


# ---- weights ----------------------------------------------------------------------------------------------


def views(cache: DecodeCache, payload: Payload) -> list[np.ndarray[Any, Any]]:
    """Return a payload's arrays as they come in a message."""
    return cache.arrays_of(npy.record_of(map(npy.array_of, payload.encode())))


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """Have each call of a function noted by its first argument."""
    calls: list[Any] = []
    plain = getattr(owner, name)

    def noted(*arguments: Any) -> Any:
        calls.append(arguments[0])
        return plain(*arguments)

    monkeypatch.setattr(owner, name, noted)
    return calls


def test_equal_bytes_are_decoded_once_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Weights({"a": torch.tensor([1.0, 2.0])})
    spec = WeightsSpec(("a",), ((2,),), (torch.float32,))
    arrivals = DecodeCache()
    decoded = counted(monkeypatch, WeightsSpec, "decode")
    first = arrivals.decode(views(arrivals, start), spec)
    again = arrivals.decode(views(arrivals, start), spec)
    assert isinstance(first, Weights)
    assert isinstance(again, Weights)
    assert first.read_only["a"].data_ptr() == again.read_only["a"].data_ptr()
    assert len(decoded) == 1
    other = arrivals.decode(views(arrivals, Weights({"a": torch.tensor([1.0, 3.0])})), spec)
    assert len(decoded) == 2
    assert other.tensors["a"].tolist() == [1.0, 3.0]
    assert first.tensors["a"].tolist() == [1.0, 2.0]


def test_what_a_device_writes_into_its_weights_no_other_one_sees() -> None:
    start = Weights({"a": torch.tensor([1.0, 2.0])})
    spec = WeightsSpec(("a",), ((2,),), (torch.float32,))
    arrivals = DecodeCache()
    came = views(arrivals, start)
    written = arrivals.decode(came, spec)
    written.tensors["a"].mul_(2)
    assert written.read_only["a"].tolist() == written.tensors["a"].tolist() == [2.0, 4.0]
    assert arrivals.decode(came, spec).tensors["a"].tolist() == [1.0, 2.0]
    assert came[1].tolist() == [1.0, 2.0]


def test_weights_that_arrived_are_copied_when_they_are_asked_for_and_not_to_be_read() -> None:
    bytes_ = npy.write(np.array([1.0, 2.0], np.float32))
    array = npy.read(bytes_)
    spec = WeightsSpec(("a",), ((2,),), (torch.float32,))
    head = Weights({"a": torch.ones(2)}).encode()[0]
    came = spec.decode([head, array])
    place = array.__array_interface__["data"][0]
    assert came.read_only["a"].data_ptr() == came.copy_on_write().read_only["a"].data_ptr() == place
    own = came.tensors["a"]
    assert own.data_ptr() != place
    assert came.tensors["a"] is came.read_only["a"] is own


def test_a_round_copies_no_weights_but_into_each_devices_model(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server reads its own and every upload as the bytes that it holds, and so do three devices."""
    asked = counted(monkeypatch, CopyOnWriteTensors, "__getitem__")
    cast = counted(monkeypatch, ModelTemplate, "instantiate")
    run(small(method="fedavg", rounds=2, set="federation.sites=3 evaluation.on=none"))
    assert len(cast) == 6
    assert not asked


@pytest.mark.extended
def test_what_a_round_reads_of_its_messages_is_no_more_with_more_devices(small: Small) -> None:
    """Headers of arrays and of payloads, once a kind: what is counted is what was not known."""
    known = (npy._announced, frame._read_short, frame._short_header)
    missed = []
    for clients in (2, 5):
        for cache in known:
            cache.cache_clear()
        run(small(method="fedavg", set=f"federation.sites={clients} evaluation.on=none"))
        missed.append([cache.cache_info().misses for cache in known])
    assert missed[0] == missed[1]
    assert missed[0][1:] == [1, 1]


def test_a_model_at_its_end_is_sent_as_it_lies_there() -> None:
    model = a_model()
    lying, copied = Weights.of(model, copy=False), Weights.of(model)
    for name, value in model.state_dict().items():
        assert lying.tensors[name].data_ptr() == value.data_ptr() != copied.tensors[name].data_ptr()
        assert not lying.tensors[name].requires_grad


def test_arrays_that_may_be_written_to_are_decoded_each_time() -> None:
    spec = WeightsSpec(("a",), ((2,),), (torch.float32,))
    arrivals, came = DecodeCache(), Weights({"a": torch.tensor([1.0, 2.0])}).encode()
    arrivals.decode(came, spec)
    came[1] = np.array([5.0, 6.0], np.float32)
    assert arrivals.decode(came, spec).tensors["a"].tolist() == [5.0, 6.0]


def test_the_parts_of_a_bundle_that_differ_by_site_are_each_sites() -> None:
    weights = Weights({"a": torch.zeros(2)})
    number = TensorsSpec({"n": TensorSpec((), 0, 9, torch.int64)})
    spec = BundleSpec({"w": WeightsSpec(("a",), ((2,),), (torch.float32,)), "n": number})
    arrivals = DecodeCache()
    one, other = (
        arrivals.decode(
            views(arrivals, Bundle({"w": weights, "n": Tensors({"n": torch.tensor(x)})})), spec
        )
        for x in (1, 2)
    )
    shared = [b.parts["w"].read_only["a"].data_ptr() for b in (one, other)]
    assert shared[0] == shared[1]
    assert [int(b.part("n", Tensors)["n"]) for b in (one, other)] == [1, 2]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(3, np.int64),
        np.zeros((0, 4), np.uint8),
        np.array([True, False]),
        np.arange(8, dtype=np.float16)[::2],
        np.arange(3, dtype=">f4"),
    ],
)
def test_arrays_travel_in_the_bytes_of_numpys_own_writer(array: np.ndarray[Any, Any]) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array)
    assert npy.write(array) == buffer.getvalue()
    (sent,) = record_of([array_of(array)]).values()
    assert (sent.dtype, sent.shape) == (str(array.dtype), array.shape)
    assert np.array_equal(sent.numpy(), array)
    lazy = lazy_array_of(array)
    assert (lazy.dtype, lazy.shape, lazy.stype) == (sent.dtype, sent.shape, sent.stype)
    assert npy.size_of(lazy) == npy.size_of(sent) == len(sent.data)
    assert np.array_equal(npy.values_of(lazy), npy.values_of(sent))
    assert not (array.size and npy.values_of(lazy).flags.writeable)
    assert pickle.loads(pickle.dumps(lazy)) == sent
    assert lazy.data == sent.data
    assert npy.size_of(lazy) == len(sent.data)
    assert lazy.object_id == sent.object_id
    lazy.data = b"changed"
    with pytest.raises(PayloadError, match="not an array as"):
        npy.values_of(lazy)


def test_a_reply_within_the_process_is_never_serialised(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is the same to the byte and bit, the counted traffic included; the server copies nothing."""
    config = small(method="fedavg", rounds=2, set="federation.sites=3 evaluation.on=none")
    shared = counted(monkeypatch, client_app.app, "lazy_array_of")
    read = counted(monkeypatch, strategies.exchange.replies, "read_arrays")
    lazily = run(config)
    arrays = [array for record in read for array in record.values()]
    assert len(arrays) == len(shared) > 6
    assert not any("data" in vars(array) for array in arrays)
    for array, sent in zip(arrays, shared, strict=True):
        assert npy.values_of(array).__array_interface__["data"][0] == sent.ctypes.data
    monkeypatch.setattr(client_app.app, "lazy_array_of", array_of)
    written = run(config)
    assert same_end(lazily, written)
    assert numbers(lazily) == numbers(written)


def test_a_reply_that_leaves_the_process_is_of_bytes(small: Small, tmp_path: Path) -> None:
    reply = Site(small(method="fedavg"), **{"state-dir": str(tmp_path / "state")}).train("train")
    arrays = reply.content.array_records["arrays"].values()
    assert {type(array) for array in arrays} == {Array}
    assert all("data" in vars(array) for array in arrays)
