"""A SuperLink that is too busy to answer costs no honest site its round."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from federation import PromptGrid, numbers, run, same_end
from flwr.app import Error, Message
from small import Small

from common.config.loading import load
from common.division import Division
from common.errors import FederationError
from common.sites import Site
from nectar.engines.local_grid import LocalGrid
from server_app.app import make_strategy
from strategies import fedssyn
from strategies.exchange import exchange
from strategies.exchange.membership import Members, Question


def answered(status: int) -> httpx.HTTPStatusError:
    """Return what Flower's grid raises of an answer with that status."""
    request = httpx.Request("POST", "http://superlink/v1/runtime/pull-messages")
    return httpx.HTTPStatusError("", request=request, response=httpx.Response(status))


class Unavailable(Exception):
    """What gRPC raises of a server that is not ready."""

    def code(self) -> Any:
        """Return its status."""
        return SimpleNamespace(name="UNAVAILABLE")


BUSY = {"500": answered(500), "503": answered(503), "429": answered(429), "gRPC": Unavailable()}


class Overloaded(PromptGrid):
    """Each message's reply is asked for in vain once."""

    def __init__(self, *args: Any, error: Exception, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.error = error
        self.refused: set[str] = set()

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Raise of each message the first time."""
        ids = list(message_ids)
        if fresh := set(ids) - self.refused:
            self.refused |= fresh
            raise self.error
        return super().pull_messages(ids)


class OverloadedWhenAsked(Overloaded):
    """The same of a grid whose devices work when their reply is asked for."""

    works_when_asked = True

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Carry nothing out."""
        return LocalGrid.push_messages(self, messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Raise of each message the first time, then carry it out."""
        ids = list(message_ids)
        if fresh := set(ids) - self.refused:
            self.refused |= fresh
            raise self.error
        return LocalGrid.pull_messages(self, ids)


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_BUSY_PAUSE", 0.01, raising=False)


@pytest.mark.extended
@pytest.mark.parametrize("grid", [Overloaded, OverloadedWhenAsked])
@pytest.mark.parametrize("error", BUSY)
def test_nothing_has_come_yet_where_the_superlink_is_too_busy(
    small: Small, caplog: pytest.LogCaptureFixture, grid: type[Overloaded], error: str
) -> None:
    """No round loses a reply, and the numbers are those of a SuperLink that answers."""
    config = small(method="fedavg", rounds=2, set="evaluation.on=both data.site_holdout=0.2")
    record = run(config, grid, error=BUSY[error])
    assert [line["rejected"] for line in record.metrics()] == [{}] * 3
    assert "the SuperLink was too busy to hand out a reply, 1 times until now" in caplog.text
    honest = run(config)
    assert numbers(record) == numbers(honest)
    assert same_end(record, honest)


def test_an_answer_that_is_no_servers_excuse_is_still_the_replys(small: Small) -> None:
    """Of a 400 nothing better is to be expected."""
    record = run(small(method="fedavg", rounds=1), OneRefused, error=answered(400))
    reason = "the reply cannot be put together (HTTPStatusError)"
    assert record.metrics()[1]["rejected"] == {"partition-1": reason}


class OneRefused(PromptGrid):
    """The second site's replies to instructions to train cannot be had."""

    def __init__(self, *args: Any, error: Exception, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.error, self.refused = error, ""

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Note which message that is."""
        messages = list(messages)
        ids = super().push_messages(messages)
        train = [m for m in messages if m.metadata.message_type == "train"]
        self.refused = train[1].metadata.message_id if len(train) > 1 else ""
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Raise of that one."""
        ids = list(message_ids)
        if self.refused in ids:
            raise self.error
        return super().pull_messages(ids)


def test_a_superlink_that_stays_too_busy_costs_the_round_at_its_deadline_and_not_the_run(
    small: Small,
) -> None:
    config = small(method="fedavg", rounds=1, set="federation.round_deadline=1")
    record = run(config, OneRefused, error=answered(500))
    assert record.metrics()[1]["rejected"] == {"partition-1": "no reply within 1 s"}


class BusyAtTheDoor(PromptGrid):
    """Every other time the SuperLink is too busy to say which nodes are there, by id or by name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.looks = 0
        super().__init__(*args, **kwargs)

    def get_node_ids(self) -> list[int]:
        """Raise, or say."""
        self.looks += 1
        if self.looks % 2:
            raise answered(503)
        return super().get_node_ids()


def test_a_superlink_too_busy_to_say_who_is_there_is_asked_again(small: Small) -> None:
    """At the roll call, of the names that were registered, and before each round."""
    config = small(method="fedavg", rounds=2)
    assert numbers(run(config, BusyAtTheDoor)) == numbers(run(config))


class NeverSays(PromptGrid):
    """The SuperLink never says which nodes are there."""

    def get_node_ids(self) -> list[int]:
        """Raise once the federation is made."""
        if hasattr(self, "_replies"):
            raise answered(503)
        return super().get_node_ids()


def test_a_superlink_too_busy_to_say_who_is_there_brings_back_no_node_that_was_refused(
    small: Small,
) -> None:
    """With one site that is there, and with none, where it is looked again until the deadline."""
    federation = load(small(set="federation.join_deadline=0.1")).federation
    grid: Any = SimpleNamespace(get_node_ids=Mock(side_effect=answered(503)), get_nodes=list)
    for sites in ([Site("a", 1, 5)], []):
        members = Members(1, sites=sites, refused={7})
        with nullcontext() if sites else pytest.raises(FederationError, match="0 sites are left"):
            members.update(grid, Question(0, False, 10), federation, lambda site: None)
        assert members.refused == {7}


def test_a_roll_call_ends_at_its_deadline_however_busy_the_superlink_is(small: Small) -> None:
    """It waited for a minute more."""
    begun = time.monotonic()
    with pytest.raises(FederationError, match=r"was too busy for 0\.3 s to say which nodes"):
        run(small(set="federation.join_deadline=0.3"), NeverSays)
    assert time.monotonic() - begun < 30


def test_fedssyn_waits_on_where_the_superlink_is_too_busy(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait ends when a node comes that was not there at the first answer."""
    answers: list[Any] = [answered(503), [1, 2], answered(503), [1], [1, 2], [1, 2, 3]]

    def looked() -> list[int]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    monkeypatch.setattr(fedssyn, "_LOOK", 0)
    strategy = make_strategy(Division(load(small(method="fedssyn"))).run)
    assert isinstance(strategy, fedssyn.Fedssyn)
    strategy._wait_for_somebody(SimpleNamespace(get_node_ids=looked))  # type: ignore[arg-type]
    assert not answers


# ---- a node that was away -------------------------------------------------------------------------------


class AwayOnce(PromptGrid):
    """The SuperLink says of the second node, once a round, that it is not there; ``back``: it is when asked about."""

    back = True

    def __init__(self, *args: Any, asked: list[int], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asked = asked

    def _call(self, message: Message) -> Message:
        about = message.metadata
        second = super().get_node_ids()[1]
        if about.dst_node_id != second or about.message_type != "train":
            return super()._call(message)
        self.asked.append(int(about.group_id))
        if self.asked.count(int(about.group_id)) == 1:
            return Message(Error(code=5, reason="away"), reply_to=message)
        return super()._call(message)

    def get_node_ids(self) -> list[int]:
        """Return the nodes that are there."""
        found = super().get_node_ids()
        return found if self.back or not self.asked else [found[0], *found[2:]]


class Away(AwayOnce):
    """It does not come back."""

    back = False


def test_a_node_that_was_away_and_is_back_is_asked_once_more_to_the_same_numbers(
    small: Small,
) -> None:
    config = small(method="fedavg", rounds=2)
    asked: list[int] = []
    record = run(config, AwayOnce, asked=asked)
    assert asked == [1, 1, 2, 2]
    honest = run(config)
    assert same_end(record, honest)
    assert [line["rejected"] for line in record.metrics()] == [{}] * 3


def test_one_that_is_still_away_is_not_waited_for(small: Small) -> None:
    asked: list[int] = []
    record = run(small(method="fedavg", rounds=1), Away, asked=asked)
    assert asked == [1]
    assert record.metrics()[1]["rejected"] == {"partition-1": "the node is unavailable"}


@pytest.mark.extended
def test_nobody_is_charged_twice_for_a_round(small: Small) -> None:
    """The first answer may have been made and lost: its noise was drawn, and charged."""
    asked: list[int] = []
    words = "privacy.noise_multiplier=1 privacy.counts=public fedavg.epochs=1"
    record = run(small(method="fedavg", rounds=1, set=words), AwayOnce, asked=asked)
    assert asked == [1]
    assert list(record.metrics()[1]["rejected"]) == ["partition-1"]
