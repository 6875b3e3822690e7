"""Devices that misbehave: rejected with a reason, in the record, while the round goes on with the others."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from federation import SilentGrid, TamperedGrid, numbers, run
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import client_app.feddm
from common.errors import FederationError
from common.wire import SyntheticImages, Weights

Small = Callable[..., dict[str, Any]]


def with_arrays(change: Callable[[list[np.ndarray]], list[np.ndarray]]) -> Any:
    """Return a tamper that changes the reply's arrays."""

    def tamper(instruction: Message, reply: Message) -> Message:
        record = next(iter(reply.content.array_records.values()))
        arrays = change(record.to_numpy_ndarrays())
        metrics = next(iter(reply.content.metric_records.values()))
        content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
        return Message(content, reply_to=instruction)

    return tamper


def garbage(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [np.frombuffer(b"\x00\xff garbage", np.uint8), np.zeros(3)]


def nan(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [arrays[0], *(np.full_like(a, np.nan) for a in arrays[1:])]


def wrong_shape(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [arrays[0], arrays[1][:, :, 1:], *arrays[2:]]


def wrong_label(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [arrays[0], arrays[1], np.full_like(arrays[2], 10)]


def unreadable(instruction: Message, reply: Message) -> Message:
    """An array whose bytes are a pickle: Flower's loader refuses it, and nothing is unpickled."""
    record = ArrayRecord([np.zeros(1)])
    record["0"].__dict__["data"] = b"\x80\x04N."
    content = RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=instruction)


def no_count(instruction: Message, reply: Message) -> Message:
    content = RecordDict(
        {"arrays": ArrayRecord([np.zeros(1)]), "metrics": MetricRecord({"x": 1.0})}
    )
    return Message(content, reply_to=instruction)


@pytest.mark.parametrize(
    ("method", "tamper", "said"),
    [
        (
            "feddm",
            with_arrays(garbage),
            "header of what should be a 'synthetic-images' is not JSON",
        ),
        ("feddm", with_arrays(nan), "values that are not finite"),
        ("feddm", with_arrays(wrong_shape), "synthetic images are float32 of shape"),
        ("feddm", with_arrays(wrong_label), "a label is 10 where 0 to 9 are allowed"),
        ("feddm", unreadable, "an array cannot be read"),
        ("feddm", no_count, "num-examples is None"),
        ("fedavg", with_arrays(nan), "the weight '.*' holds .* values that are not finite"),
        ("fedavg", with_arrays(wrong_shape), "where float32 of shape"),
        ("fedavg", with_arrays(garbage), "is not JSON"),
        ("flwr.serverapp.strategy:FedAdam", with_arrays(nan), "values that are not finite"),
        ("flwr.serverapp.strategy:FedAdam", with_arrays(wrong_shape), "where float32 of shape"),
    ],
)
def test_a_bad_reply_is_rejected_by_name_and_the_others_go_on(
    small: Small, method: str, tamper: Any, said: str
) -> None:
    record = run(small(method=method, rounds=1), TamperedGrid, tampers={1: tamper})
    line = record.metrics()[1]
    assert line["accepted"] == ["partition-0", "partition-2"]
    assert list(line["rejected"]) == ["partition-1"]
    assert re.search(said, line["rejected"]["partition-1"])
    assert line["bytes"]["up"]["partition-1"] > 0


def test_a_rejected_reply_changes_nothing_of_what_the_others_teach(small: Small) -> None:
    """The average of sites 0 and 2 is the same whether site 1 sends NaN or never answers."""
    poisoned = run(small(method="fedavg", rounds=1), TamperedGrid, tampers={1: with_arrays(nan)})
    silent = small(method="fedavg", rounds=1, set="federation.round_deadline=0.3")
    withheld = run(silent, SilentGrid, silent=[1])
    assert poisoned.metrics()[1]["test"] == withheld.metrics()[1]["test"]


def test_a_device_that_raises_gives_its_type_and_a_number_but_not_its_words(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(self: Any, w: Weights) -> SyntheticImages:
        if self.site == "partition-0":
            raise ValueError("patient 4711 has label 3")
        return original(self, w)

    original = client_app.feddm.FedDMClient.synthesize
    explode.__dict__.update(original.__dict__)
    monkeypatch.setattr(client_app.feddm.FedDMClient, "synthesize", explode)
    record = run(small(rounds=1))
    reason = record.metrics()[1]["rejected"]["partition-0"]
    assert re.fullmatch(r"the device raised ValueError \(incident [0-9a-f]{8} in its log\)", reason)


def test_a_device_that_never_answers_is_given_up_at_the_deadline(small: Small) -> None:
    config = small(rounds=2, set="federation.round_deadline=0.5")
    record = run(config, SilentGrid, silent=[2])
    for line in record.metrics()[1:]:
        assert line["accepted"] == ["partition-0", "partition-1"]
        assert line["rejected"] == {"partition-2": "no reply within 0.5 s"}


@pytest.mark.parametrize("method", ["feddm", "fedavg", "flwr.serverapp.strategy:FedAvg"])
def test_with_too_few_left_the_run_stops_with_the_reasons(small: Small, method: str) -> None:
    config = small(method=method, set="federation.min_replies=3")
    with pytest.raises(FederationError, match=r"2 valid replies .* 3 \(partition-1: .*not JSON"):
        run(config, TamperedGrid, tampers={1: with_arrays(garbage)})


def test_the_record_of_a_stopped_run_says_why(small: Small, tmp_path: Any) -> None:
    with pytest.raises(FederationError):
        run(
            small(set="federation.min_replies=3"),
            TamperedGrid,
            tampers={0: with_arrays(garbage)},
        )
    (provenance,) = (tmp_path / "runs").glob("*/provenance.json")
    assert "failed: round 1 has 2 valid replies" in provenance.read_text()


def test_two_nodes_of_one_name_are_refused(small: Small) -> None:
    with pytest.raises(FederationError, match="two nodes call themselves 'hospital'"):
        run(small(), node_config={"site": "hospital"})


def test_a_device_with_other_source_is_refused_with_both_named(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client_app.app.source_fingerprint", lambda: "0123456789abcdef")
    with pytest.raises(
        FederationError, match="'partition-0' runs source 0123456789abcdef, the server"
    ):
        run(small())


def test_an_app_that_is_not_nectars_is_named_at_the_roll_call(small: Small) -> None:
    other = ClientApp()

    @other.query("roll_call")
    def hello(message: Message, context: Any) -> Message:
        return Message(RecordDict({"about": MetricRecord({"x": 1})}), reply_to=message)

    with pytest.raises(FederationError, match="answered the roll call with something else"):
        run(small(), app=other)


def test_waves_and_all_at_once_give_the_same_numbers(small: Small) -> None:
    at_once = run(small(method="fedavg", set="federation.clients=5"))
    waves = run(small(method="fedavg", set="federation.clients=5 federation.wave=2"))
    assert numbers(at_once) == numbers(waves)
