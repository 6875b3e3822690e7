"""Devices that misbehave: rejected with a reason, in the record, while the round goes on with the others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from federation import SilentGrid, TamperedGrid, run
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from small import Small
from tampering import nan, with_arrays

import client_app.device
import client_app.fedavg
import client_app.feddm
from common.errors import FederationError
from common.sites import IN_PROCESS, RAY, SUPERLINK, Site
from common.specs.updates import EXCEPTION
from common.wire.images import SyntheticImages
from common.wire.weights import Weights
from nectar.engines.local_grid import LocalGrid
from strategies.exchange.membership import Members
from strategies.feddm import FedDM

pytestmark = pytest.mark.promise(
    "Records",
    "An error that all sites raise alike stops a simulation; what real sites send stops no run",
)


def garbage(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [np.frombuffer(b"\x00\xff garbage", np.uint8), np.zeros(3)]


def wrong_shape(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [arrays[0], arrays[1][:, :, 1:], *arrays[2:]]


def unreadable(instruction: Message, reply: Message) -> Message:
    """An array whose bytes are a pickle: Flower's loader refuses it, and nothing is unpickled."""
    record = ArrayRecord([np.zeros(1)])
    record["0"].__dict__["data"] = b"\x80\x04N."
    content = RecordDict({"arrays": record, "metrics": reply.content["metrics"]})
    return Message(content, reply_to=instruction)


def no_count(instruction: Message, reply: Message) -> Message:
    content = RecordDict(
        {"arrays": ArrayRecord([np.zeros(1)]), "metrics": MetricRecord({"x": 1.0})}
    )
    return Message(content, reply_to=instruction)


def counts(number: float) -> Any:
    """Return a tamper that claims to have trained on ``number`` images."""

    def tamper(instruction: Message, reply: Message) -> Message:
        metrics = MetricRecord({"num-examples": number, "train-loss": 0.0})
        content = RecordDict({"arrays": reply.content["arrays"], "metrics": metrics})
        return Message(content, reply_to=instruction)

    return tamper


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("method", "tamper", "said"),
    [
        ("fedavg", counts(100_000), "num-examples is 100000 where the roll call said"),
        ("feddm", unreadable, "array 0 of the reply cannot be read: it is not an array"),
        ("feddm", no_count, "num-examples is None"),
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
    assert re.fullmatch(r"site failed: ValueError, \w+\.py:\d+ \(log [0-9a-f]{8}\)", reason)


def explodes(*_: Any) -> Any:
    raise ValueError("patient 4711 has label 3")


def test_sites_that_fail_alike_are_said_once_and_stop_a_simulation(
    small: Small, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten sites gave ten tracebacks, ten warnings and ten reasons, and one whose judging failed ran to its end."""
    monkeypatch.setattr(client_app.device.DeviceClient, "judged", explodes)
    config = small(method="fedavg", rounds=3, set="evaluation.on=sites data.site_holdout=0.2")
    with pytest.raises(
        FederationError, match=r"^evaluation of round 1: all 3 sites failed alike: "
    ):
        run(config)
    assert caplog.text.count("Traceback") == 1
    assert caplog.text.count("rejected the evaluation of") == 1
    assert "evaluation of round 1: rejected partition-0 and 2 more: site failed:" in caplog.text


def test_the_reasons_of_a_stopped_run_are_each_said_once(
    small: Small, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_app.fedavg, "trained_weights", explodes)
    with pytest.raises(
        FederationError, match=r"\(partition-0 and 2 more: site failed: ValueError, "
    ):
        run(small(method="fedavg"))
    assert caplog.text.count("Traceback") == 1


@pytest.mark.parametrize("engine", [SUPERLINK, RAY, IN_PROCESS])
def test_only_a_simulation_is_stopped_by_what_all_its_sites_raise(engine: str) -> None:
    """One SuperNode of its own makes it a federation, which no site's words stop."""
    engines = [RAY, engine, RAY]
    sites = [Site(str(i), i, 5, engine=of) for i, of in enumerate(engines)]
    members = Members(3, sites=sites)
    failed = dict.fromkeys("012", f"{EXCEPTION} ValueError, m.py:1 (log 0a00ce26)")
    for harmless in ({"0": failed["0"], "1": "else"}, dict.fromkeys("012", "no reply within 6 s")):
        members.note_alike("round 2", harmless, {})
    members.note_alike("round 2", failed, {"3": {}})
    if engine == SUPERLINK:
        members.note_alike("round 2", failed, {})
        return
    with pytest.raises(FederationError, match="round 2: all 3 sites failed alike"):
        members.note_alike("round 2", failed, {})


def test_a_device_that_never_answers_is_given_up_at_the_deadline(small: Small) -> None:
    config = small(method="real", rounds=2, set="federation.round_deadline=600")
    record = run(config, SilentGrid, silent=[2])
    for line in record.metrics()[1:]:
        assert line["accepted"] == ["partition-0", "partition-1"]
        assert line["rejected"] == {"partition-2": "no reply within 600 s"}


@pytest.mark.sweep
@pytest.mark.parametrize("method", ["feddm", "fedavg", "flwr.serverapp.strategy:FedAvg"])
def test_with_too_few_left_the_run_stops_with_the_reasons(small: Small, method: str) -> None:
    config = small(method=method, set="federation.min_replies=3")
    with pytest.raises(FederationError, match=r"2 valid replies .* 3 \(partition-1: .*not JSON"):
        run(config, TamperedGrid, tampers={1: with_arrays(garbage)})


def test_the_record_of_a_stopped_run_says_why(small: Small, tmp_path: Any) -> None:
    with pytest.raises(FederationError):
        run(small(set="federation.min_replies=3"), TamperedGrid, tampers={0: with_arrays(garbage)})
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


class CountingGrid(LocalGrid):
    """Notes how many instructions to train are pushed together."""

    pushed: ClassVar[list[int]] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Note, then push."""
        messages = list(messages)
        if messages and messages[0].metadata.message_type == "train":
            self.pushed.append(len(messages))
        return super().push_messages(messages)


def test_waves_are_cut_to_size(small: Small) -> None:
    CountingGrid.pushed.clear()
    run(small(method="fedavg", rounds=1, set="federation.sites=5 federation.wave=2"), CountingGrid)
    assert CountingGrid.pushed == [2, 2, 1]


def test_a_wave_behind_the_deadline_is_not_sent(small: Small) -> None:
    CountingGrid.pushed.clear()
    config = small(method="real", rounds=1, set="federation.wave=1 federation.round_deadline=0.001")
    line = run(config, CountingGrid).metrics()[1]
    assert CountingGrid.pushed == [1]
    assert line["accepted"] == ["partition-0"]
    assert list(line["bytes"]["down"]) == ["partition-0"]


def test_a_site_whose_name_could_leave_the_record_is_refused(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client_app.site.site_name", lambda config: "../../evil")
    with pytest.raises(FederationError, match="the site name"):
        run(small())


@pytest.mark.extended
def test_a_strategy_that_waits_for_nodes_that_never_come_is_stopped(small: Small) -> None:
    config = small(method="flwr.serverapp.strategy:FedAvg", set="strategy.min_available_nodes=20")
    with pytest.raises(FederationError, match="waits for more nodes than the 3 there are"):
        run(config)


@pytest.mark.extended
def test_the_server_computes_on_its_own_number_of_threads(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    original = FedDM.update

    def spy(self: FedDM, server_round: int, weights: Weights, uploads: Any) -> Weights:
        received = list(uploads)
        seen.append(torch.get_num_threads())
        return original(self, server_round, weights, iter(received))

    monkeypatch.setattr(FedDM, "update", spy)
    run(small(rounds=1, set="compute.server_cores=2"))
    assert seen == [2]
