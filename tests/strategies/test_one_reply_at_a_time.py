"""A round in this process holds few replies, however many devices there are and however large their weights."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from federation import numbers, run, same_end
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from small import Small

from common.config.loading import load
from common.division import Division
from common.sites import Site
from common.wire.weights import Weights
from nectar.engines.local_grid import LocalGrid
from server_app.app import make_strategy
from strategies.exchange import screening
from strategies.exchange.exchange import exchange
from strategies.exchange.instructions import Serialiser
from strategies.exchange.replies import Upload
from strategies.exchange.screening import group_sizes


def test_a_device_works_when_its_reply_is_asked_for_and_the_last_reply_is_gone_by_then() -> None:
    worked, held = [], []
    replies: list[weakref.ref[Message]] = []
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        worked.append(context.node_id)
        held.append(sum(reply() is not None for reply in replies))
        reply = Message(RecordDict(), reply_to=message)
        replies.append(weakref.ref(reply))
        return reply

    grid = LocalGrid(app, 4)
    content = RecordDict({"config": ConfigRecord({"a": 1})})
    messages = [Message(content, node, "train") for node in grid.get_node_ids()]
    answers = exchange(grid, messages, deadline=60.0)
    assert not worked
    next(answers)
    assert worked == [1000]
    while next(answers, None) is not None:
        pass
    assert worked == [1000, 1001, 1002, 1003]
    assert held == [0, 0, 0, 0]


def test_what_a_device_does_to_its_message_stays_with_it() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        record, config = message.content["arrays"], message.content["config"]
        assert isinstance(record, ArrayRecord)
        assert isinstance(config, ConfigRecord)
        record["0"].data, config["list"], config["a"] = b"", [], 2
        del message.content["other"]
        return Message(RecordDict(), reply_to=message)

    grid = LocalGrid(app, 1)
    arrays = ArrayRecord({"0": torch.ones(2)})
    config = ConfigRecord({"a": 1, "list": [1, 2]})
    content = RecordDict({"arrays": arrays, "config": config, "other": ConfigRecord()})
    before = arrays["0"].data
    list(exchange(grid, [Message(content, 1000, "train")], deadline=60.0))
    assert arrays["0"].data == before
    assert (config["a"], config["list"]) == (1, [1, 2])
    assert "other" in content


def test_large_uploads_are_judged_by_ones_and_the_first_three_together() -> None:
    assert list(islice(group_sizes(16, 1_000), 3)) == [16, 16, 16]
    assert list(islice(group_sizes(16, 45 * 2**20), 3)) == [3, 1, 1]
    assert list(islice(group_sizes(16, 20 * 2**20), 3)) == [3, 3, 3]
    assert list(islice(group_sizes(1, 45 * 2**20), 3)) == [3, 1, 1]
    assert list(islice(group_sizes(16, 0), 2)) == [16, 16]


@pytest.mark.extended
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_groups_of_large_uploads_change_no_number(
    small: Small, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    config = small(method=method, rounds=2, set="federation.sites=5")
    together = run(config)
    monkeypatch.setattr(screening, "_HELD", 1)
    apart = run(config)
    assert same_end(together, apart)
    assert [line["test"] for line in numbers(together)] == [line["test"] for line in numbers(apart)]


def test_an_average_holds_no_upload_but_the_first_until_the_second_comes(small: Small) -> None:
    strategy = make_strategy(Division(load(small(method="fedavg"))).run)
    start, examples = Weights.of(strategy.run.build_model()), (3, 5, 1)
    held: list[weakref.ref[torch.Tensor]] = []
    alive = []

    def uploads() -> Iterator[Upload]:
        for k, n in enumerate(examples, 1):
            moved = Weights({name: t * k for name, t in start.tensors.items()})
            held.extend(map(weakref.ref, moved.tensors.values()))
            upload = [Upload(Site(f"partition-{k}", k, n), moved, n, {})]
            del moved
            yield upload.pop()
            alive.append(sum(one() is not None for one in held))

    mean = strategy.update(1, start, uploads())
    assert alive == [len(start.tensors), 0, 0]
    for name, value in start.tensors.items():
        exact = sum(n * (value * k).double() for k, n in enumerate(examples, 1)) / 9
        assert torch.equal(mean.tensors[name], exact.float())


def test_weights_that_travel_as_the_round_has_them_are_in_memory_once() -> None:
    weights = Weights({"a": torch.arange(4.0), "b": torch.ones(2)})
    known = ArrayRecord(dict(weights.tensors))
    sent = list(Serialiser(list(known.values())).record(weights).values())
    assert [one is other for one, other in zip(sent[1:], known.values(), strict=True)] == [
        True,
        True,
    ]
    moved = Weights({"a": torch.arange(4.0), "b": torch.zeros(2)})
    sent = list(Serialiser(list(known.values())).record(moved).values())
    assert [one is other for one, other in zip(sent[1:], known.values(), strict=True)] == [
        True,
        False,
    ]


def test_a_model_that_tries_uploads_keeps_none(small: Small) -> None:
    made = Division(load(small())).run
    trial = screening.FiniteCheck(made)
    weights = Weights.of(made.build_model())
    assert trial.gives_numbers(weights)
    assert sum(own.numel() for own in trial._model.parameters()) == 0
    bad = {**weights.tensors, "head.bias": torch.full_like(weights.tensors["head.bias"], torch.nan)}
    assert not trial.gives_numbers(Weights(bad))
    assert trial.gives_numbers(weights)
