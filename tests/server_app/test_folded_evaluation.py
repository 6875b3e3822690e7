"""The evaluation at the sites rides on the next round's instructions: fewer exchanges, and the figures of two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from federation import numbers, resumed, run
from flwr.app import Message
from small import Small

import client_app.fedavg
from common.errors import FederationError
from common.specs.updates import EVALUATION
from common.wire.weights import Weights
from nectar.engines.local_grid import LocalGrid
from server_app.record import Record
from server_app.recorder import Recorder
from strategies.exchange.evaluation import EvaluationRequest

AT_SITES = "evaluation.on=both data.site_holdout=0.2"

METHODS = [
    ("fedavg", ""),
    ("feddm", "feddm.start=noise feddm.warm=on"),
    ("fedsynth", "model.norm=none fedsynth.iterations=2 fedsynth.rate=6"),
    ("masking", "masking.rate=2"),
    ("topk", "topk.rate=8"),
    ("real", ""),
    ("flwr.serverapp.strategy:FedAdam", "strategy.eta=0.05"),
]


class Exchanges(LocalGrid):
    """Notes what is sent together."""

    sent: ClassVar[list[Counter[str]]] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Note, then push."""
        messages = list(messages)
        kinds = Counter(m.metadata.message_type for m in messages)
        kinds["riding"] = sum(EVALUATION in m.content for m in messages)
        self.sent.append(kinds)
        return super().push_messages(messages)


@pytest.fixture(autouse=True)
def _none_sent() -> None:
    Exchanges.sent.clear()


def figures(record: Record) -> list[dict[str, Any]]:
    """Return the rounds without the bytes, of which fewer are sent."""
    return [{k: v for k, v in line.items() if k != "bytes"} for line in numbers(record)]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("method", "settings"),
    [*METHODS[:2], *(pytest.param(*row, marks=pytest.mark.extended) for row in METHODS[2:])],
)
def test_a_round_is_one_exchange_and_the_figures_are_those_of_two(
    small: Small, monkeypatch: pytest.MonkeyPatch, method: str, settings: str
) -> None:
    config = small(method=method, rounds=2, set=f"{AT_SITES} {settings}")
    folded = run(config, Exchanges)
    assert [dict(+kinds) for kinds in Exchanges.sent] == [
        {"query.roll_call": 3},
        {"train": 3},
        {"train": 3, "riding": 3},
        {"evaluate": 3},
    ]
    # Each question has a message of its own.
    monkeypatch.setattr(EvaluationRequest, "question_beside", lambda *_: {})
    apart = run(config)
    assert figures(folded) == figures(apart)
    assert all(line["sites"] and not line["unevaluated"] for line in figures(folded)[1:])


def test_a_site_that_is_not_chosen_next_is_asked_beside_the_others(small: Small) -> None:
    settings = f"{AT_SITES} federation.participation=0.34"
    record = run(small(method="fedavg", rounds=3, set=settings), Exchanges)
    assert [dict(+kinds) for kinds in Exchanges.sent[2:4]] == 2 * [
        {"train": 1, "riding": 1, "evaluate": 2}
    ]
    assert all(line["sites"] and not line["unevaluated"] for line in figures(record)[1:])


def test_a_phase_that_fails_keeps_no_figures_back(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And an evaluation that fails keeps no update back."""
    train, judge = client_app.fedavg.FedAvgClient.train, client_app.fedavg.FedAvgClient.evaluate

    def failing(self: Any, w: Weights) -> Weights:
        if self.site == "partition-1" and self.server_round == 2:
            raise FederationError("no time for this")
        return train(self, w)

    def blind(self: Any, parameters: Any, config: Any) -> Any:
        if self.site == "partition-2" and config["server-round"] == 1:
            raise FederationError("no eyes for this")
        return judge(self, parameters, config)

    failing.__dict__.update(train.__dict__)
    monkeypatch.setattr(client_app.fedavg.FedAvgClient, "train", failing)
    monkeypatch.setattr(client_app.fedavg.FedAvgClient, "evaluate", blind)
    _, first, second = figures(run(small(method="fedavg", rounds=2, set=AT_SITES)))
    assert first["unevaluated"] == {"partition-2": "no eyes for this"}
    assert first["sites"]["accuracy"] > 0
    assert second["rejected"] == {"partition-1": "no time for this"}
    assert second["accepted"] == ["partition-0", "partition-2"]


class Stopped(Exception):
    """A run that ends here."""


@pytest.mark.extended
@pytest.mark.parametrize("when", ["with its checkpoint", "behind its line", "before the last line"])
def test_a_run_that_stops_anywhere_continues_to_the_same_numbers(
    small: Small, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Round 2's line is not there, or there with its checkpoint of before; no figure of it is lost."""
    config = small(method="fedavg", rounds=3, set=AT_SITES)
    whole = run(config)
    keep, judged = Recorder.__call__, Recorder.evaluated_at_sites

    def stop_at(self: Recorder, result: Any) -> None:
        if when == "behind its line" and result.server_round == 3:
            raise Stopped
        keep(self, result)
        if when == "with its checkpoint" and result.server_round == 2:
            raise Stopped

    def stop_before(self: Recorder, asked: Any, *told: Any) -> None:
        if when == "before the last line" and asked.server_round == 3:
            raise Stopped
        judged(self, asked, *told)

    with monkeypatch.context() as stopping:
        stopping.setattr(Recorder, "__call__", stop_at)
        stopping.setattr(Recorder, "evaluated_at_sites", stop_before)
        part = small(method="fedavg", rounds=3, set=AT_SITES) | {
            "output-dir": f"{config['output-dir']}/b"
        }
        with pytest.raises(Stopped):
            run(part)
    (record,) = _records(part)
    lines = [line["round"] for line in record.metrics()]
    assert lines == ([0, 1] if when == "with its checkpoint" else [0, 1, 2])
    continued = resumed(record)
    assert numbers(continued) == numbers(whole)


def _records(config: dict[str, Any]) -> list[Record]:
    return [Record(directory) for directory in Path(config["output-dir"]).iterdir()]


def test_a_round_that_fails_still_writes_what_the_sites_said_of_the_last(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = client_app.fedavg.FedAvgClient.train

    def failing(self: Any, w: Weights) -> Weights:
        if self.server_round == 2:
            raise FederationError("no")
        return train(self, w)

    failing.__dict__.update(train.__dict__)
    monkeypatch.setattr(client_app.fedavg.FedAvgClient, "train", failing)
    config = small(method="fedavg", rounds=2, set=AT_SITES)
    with pytest.raises(FederationError, match="round 2 has 0 valid replies"):
        run(config)
    (record,) = _records(config)
    assert [line["round"] for line in record.metrics()] == [0, 1]


def test_the_log_says_what_the_sites_found(small: Small, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="flwr"):
        record = run(small(method="fedavg", rounds=2, set=AT_SITES))
    message = [r.getMessage() for r in caplog.records if r.getMessage().startswith("round ")]
    assert [text.split(":")[0] for text in message] == [
        *("round 0/2", "round 1/2", "round 1/2", "round 2/2", "round 2/2")
    ]
    accuracy = record.metrics()[1]["sites"]["accuracy"]
    assert message[2].startswith(f"round 1/2: at the sites accuracy {accuracy:.4f}")


@pytest.mark.extended
@pytest.mark.parametrize("on", ["server", "both"])
def test_only_every_third_round_and_the_last_are_evaluated_and_the_weights_are_the_same(
    small: Small, on: str
) -> None:
    """Evaluation reads nothing that training draws from, so what it leaves out changes no later figure."""
    text = f"evaluation.on={on} data.site_holdout=0.2 data.validation=0.1"
    often = run(small(rounds=4, set=text)).metrics()
    seldom = run(small(rounds=4, set=f"{text} evaluation.every=3")).metrics()
    assert [line["round"] for line in seldom if line["test"]] == [0, 3, 4]
    judged = [3, 4] if on == "both" else []
    assert [line["round"] for line in seldom if line.get("sites")] == judged
    for one, other in zip(often, seldom, strict=True):
        if other["test"]:
            assert (one["test"], one["validation"]) == (other["test"], other["validation"])
            assert one.get("sites") == other.get("sites")
