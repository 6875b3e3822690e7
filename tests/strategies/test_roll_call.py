"""A site that says nonsense at the roll call, or cannot answer it, is left out by name; the others begin."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest
from federation import PromptGrid, run
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from small import Small

from client_app.app import app as client_app
from common.errors import FederationError
from common.privacy.ledger import LedgerTip
from nectar.engines.local_grid import LocalGrid
from strategies.exchange import membership
from strategies.exchange.membership import Question, wait_for_sites

pytestmark = pytest.mark.promise(
    "Absurd figures, and the roll call",
    "A site with impossible counts, no folder, no answer, a wrong partition or a name in use "
    "(then both) is left out, with its reason",
)

#: no site of these tests is worth waiting for
QUICK = "federation.join_deadline=0.3"
Answer = Callable[[Message, Message], Message]


class AnsweringGrid(LocalGrid):
    """A federation whose nodes numbered ``answers`` make something else of their answer to the roll call."""

    def __init__(self, *args: Any, answers: Mapping[int, Answer], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._answers = {self.get_node_ids()[i]: answer for i, answer in answers.items()}

    def _call(self, message: Message) -> Message:
        reply = super()._call(message)
        answer = self._answers.get(message.metadata.dst_node_id)
        if answer is None or not message.metadata.message_type.startswith("query"):
            return reply
        return answer(message, reply)


def sizes(**values: Any) -> Answer:
    """Return an answer whose sizes are ``values``, underscores read as dashes."""

    def change(asked: Message, reply: Message) -> Message:
        message = reply.content.metric_records["sizes"]
        changed = {key.replace("_", "-"): value for key, value in values.items()}
        content = {"about": reply.content["about"], "sizes": MetricRecord({**message, **changed})}
        return Message(RecordDict(content), reply_to=asked)

    return change


def about(**values: Any) -> Answer:
    """Return an answer that says ``values`` of its site."""

    def change(asked: Message, reply: Message) -> Message:
        for key, value in values.items():
            reply.content.config_records["about"][key.replace("_", "-")] = value
        return reply

    return change


def fails(asked: Message, reply: Message) -> Message:
    """Say what a site says whose folder is missing."""
    return Message(Error(code=2, reason="the site's images are not there"), reply_to=asked)


def runs_another_app(asked: Message, reply: Message) -> Message:
    """Say what Flower makes of a pinned site's refusal."""
    message = "<class 'PermissionError'>:<'this site runs the app d894 and no other'>"
    return Message(Error(code=2, reason=message), reply_to=asked)


def empty(asked: Message, reply: Message) -> Message:
    return Message(RecordDict(), reply_to=asked)


def crowded(**records: ConfigRecord) -> Answer:
    """Return an answer with more records beside its own."""

    def change(asked: Message, reply: Message) -> Message:
        return Message(RecordDict({**reply.content, **records}), reply_to=asked)

    return change


NONSENSE = {
    "infinite": (sizes(num_examples=float("inf")), "inf is not a count"),
    "not a number": (sizes(num_examples=float("nan")), "nan is not a count"),
    "huge": (
        sizes(num_examples=1e300),
        r"1e\+300 images .* federation.max_examples allows 10000000",
    ),
    "a thousand million": (sizes(num_examples=10**9), "1000000000 images where"),
    "half": (sizes(num_examples=10.5), "10.5 is not a count"),
    "negative": (sizes(num_examples=-3), "-3 is not a count"),
    "none": (sizes(num_examples=0), "holds no images"),
    "a list": (sizes(num_examples=[3, 4]), "is not a count"),
    "partitions": (sizes(num_partitions=float("inf")), "inf is not a count"),
    "other partitions": (sizes(num_partitions=7), "the nodes disagree on num-partitions"),
    "a partition after the last": (about(partition_id=3), "partition 3 of 3"),
    "a partition of infinite number": (
        about(partition_id=float("inf")),
        "something else .OverflowError",
    ),
    "no folder": (fails, "failed the roll call: the site's images are not there"),
    "another app": (runs_another_app, "failed the roll call: this site runs the app d894 and no"),
    "nothing": (empty, "answered the roll call with something else"),
    "another record": (
        crowded(more=ConfigRecord({})),
        "record 'more' where about, sizes were expected",
    ),
    "many records": (
        crowded(**{f"more-{i}": ConfigRecord({}) for i in range(9)}),
        "holds 11 records where 8",
    ),
    "a long text": (about(more="x" * 2**18), "the reply's metadata take 26"),
    "a name of bytes": (about(site=b"\xff"), "the site name"),
}


@pytest.mark.extended
@pytest.mark.parametrize("kind", NONSENSE)
def test_a_site_that_answers_nonsense_is_left_out_by_name(
    small: Small, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    answer, message = NONSENSE[kind]
    with caplog.at_level("WARNING", logger="flwr"):
        record = run(
            small(method="fedavg", rounds=1, set=QUICK), AnsweringGrid, answers={1: answer}
        )
    assert record.metrics()[1]["accepted"] == ["partition-0", "partition-2"]
    partition = json.loads((record.directory / "partition.json").read_text())
    assert list(partition["sites"]) == ["partition-0", "partition-2"]
    (reason,) = partition["left_out"].values()
    assert re.search(message, reason)
    assert reason in caplog.text


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([1e300] * 10, r"add up to 1e\+301"),
        ([float("inf")] * 10, "inf is not a count"),
        ([1] * 9, "no counts of 10 classes"),
        ([10**8] * 10, "counts of classes that add up to 1000000000"),
        ([-1] * 10, "-1 is not a count"),
    ],
)
def test_counts_of_classes_are_held_against_the_number_of_images(
    small: Small, counts: list[float], said: str
) -> None:
    config = small(rounds=1, set="feddm.image_weighting=counts")
    record = run(config, AnsweringGrid, answers={0: sizes(class_counts=counts)})
    assert record.metrics()[1]["accepted"] == ["partition-1", "partition-2"]
    (reason,) = json.loads((record.directory / "partition.json").read_text())["left_out"].values()
    assert re.search(said, reason)


def test_who_takes_the_name_of_another_begins_no_run_and_ends_none(small: Small) -> None:
    """Nobody can tell which of the two it belongs to, so both are left out."""
    record = run(
        small(method="fedavg", rounds=1, set=f"{QUICK} federation.sites=4"),
        AnsweringGrid,
        answers={3: about(site="partition-0")},
    )
    assert record.metrics()[1]["accepted"] == ["partition-1", "partition-2"]


def test_fewer_than_the_quorum_end_the_run_at_once_with_the_reasons(small: Small) -> None:
    config = small(set="federation.min_replies=3")
    message = r"2 of 3 sites can take part .*min_replies asks for 3 \(node .*images are not there\)"
    with pytest.raises(FederationError, match=message):
        run(config, AnsweringGrid, answers={2: fails})


def test_a_claim_is_capped_by_the_runs_own_setting(small: Small) -> None:
    """Digits has 1,437 images to learn from: nobody of three holds a thousand."""
    config = small(method="fedavg", rounds=1, set="federation.max_examples=1000")
    record = run(config, AnsweringGrid, answers={0: sizes(num_examples=1001)})
    assert record.metrics()[1]["accepted"] == ["partition-1", "partition-2"]


def test_a_node_that_does_not_answer_is_waited_for_and_then_left_out(small: Small) -> None:
    def gone(asked: Message, reply: Message) -> Message:
        return Message(Error(code=5, reason="node unavailable"), reply_to=asked)

    config = small(method="fedavg", rounds=1, set="federation.join_deadline=0.3")
    record = run(config, AnsweringGrid, answers={2: gone})
    assert record.metrics()[1]["accepted"] == ["partition-0", "partition-1"]


def test_a_run_that_began_without_a_site_keeps_the_partition_and_continues(small: Small) -> None:
    """The others hold the shares of three, not of two, and the record says so."""
    from nectar.records.outputs import with_recorded

    whole = run(small(method="fedavg", rounds=1))
    part = run(small(method="fedavg", rounds=1, set=QUICK), AnsweringGrid, answers={0: fails})
    rows = [json.loads((r.directory / "partition.json").read_text()) for r in (whole, part)]
    del rows[0]["sites"]["partition-0"]
    assert rows[1]["sites"] == rows[0]["sites"]
    again = with_recorded({"resume": str(part.directory), "rounds": 2})
    assert len(run(again, AnsweringGrid, answers={0: fails}).metrics()) == 3


# ---- what it costs the server: one content for all, one look at the names ----------------------------


NODES = 40


class Looked(PromptGrid):
    """Keeps what is pushed and counts the looks at the nodes; the nodes in ``silent`` never answer."""

    def __init__(self, *args: Any, silent: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pushed: list[Message] = []
        self.looks = 0
        self._silent = set(self.get_node_ids()[:silent])

    def get_nodes(self) -> Iterator[NodeInfo]:
        self.looks += 1
        return (
            NodeInfo(node_id=i, name=f"partition-{k}") for k, i in enumerate(self.get_node_ids())
        )

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        self.pushed += messages
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [
            reply
            for reply in super().pull_messages(message_ids)
            if reply.metadata.src_node_id not in self._silent
        ]


def federation(small: Small, silent: int = 0) -> Looked:
    config = small(method="fedavg", set=f"federation.sites={NODES} partition.kind=iid")
    return Looked(client_app, NODES, config, silent=silent)


def test_all_are_asked_with_one_content_and_heads_are_written_once(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every node was sent a text of its own over all sites' heads: their number squared."""
    written: list[int] = []

    def write(heads: Any) -> str:
        written.append(len(heads))
        return tips_to_text(heads)

    tips_to_text = membership.tips_to_text
    monkeypatch.setattr(membership, "tips_to_text", write)
    heads = {f"partition-{i}": LedgerTip(1, "a" * 64) for i in range(NODES)}
    grid = federation(small)
    question = Question(0, held_out=False, max_examples=10**6, ledger_tips=heads)
    there = wait_for_sites(grid, NODES, question, deadline=600.0, min_replies=1)
    assert len(there.sites) == NODES == len(grid.pushed)
    assert written == [NODES]
    assert len({id(message.content) for message in grid.pushed}) == 1
    assert len({message.metadata.message_id for message in grid.pushed}) == NODES


@pytest.mark.usefixtures("fake_clock")
def test_the_silent_are_named_by_one_look_at_the_nodes(small: Small) -> None:
    """Each silent node cost a look of its own at all nodes."""
    grid = federation(small, silent=30)
    question = Question(0, held_out=False, max_examples=10**6)
    there = wait_for_sites(grid, NODES, question, deadline=0.5, min_replies=1)
    assert len(there.sites) == 10
    assert there.silent[1000] == ("online and busy or not answering: partition-0 (node 1000)")
    assert len(there.silent) == 30
    assert grid.looks == 1


@pytest.mark.usefixtures("fake_clock")
def test_too_few_are_told_as_before(small: Small) -> None:
    grid = federation(small, silent=NODES)
    question = Question(0, held_out=False, max_examples=10**6)
    with pytest.raises(FederationError, match=r"0 of 40 sites were there after 0.3 s"):
        wait_for_sites(grid, NODES, question, deadline=0.3, min_replies=1)


@pytest.mark.usefixtures("fake_clock")
def test_of_many_that_are_there_twenty_are_named(small: Small) -> None:
    grid = federation(small, silent=1)
    question = Question(0, held_out=False, max_examples=10**6)
    with pytest.raises(FederationError) as caught:
        wait_for_sites(grid, NODES, question, deadline=0.3, min_replies=NODES)
    message = str(caught.value)
    assert message.startswith("39 of 40 sites were there after 0.3 s (partition-1, partition-2, ")
    assert (
        "partition-20 and 19 more; online and busy or not answering: partition-0 (node" in message
    )
    assert "partition-21" not in message


class Unapproved(Looked):
    """The nodes in ``silent`` answer that their owners have not approved the run."""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        sent = {message.metadata.message_id: message for message in self.pushed}
        error = Error(code=membership.AWAITS_OWNER, reason="its owner is\nasked until 20:00 UTC")
        return [
            Message(error, reply_to=sent[reply.metadata.reply_to_message_id])
            if reply.metadata.src_node_id in self._silent
            else reply
            for reply in PromptGrid.pull_messages(self, message_ids)
        ]


@pytest.mark.usefixtures("fake_clock")
def test_who_waits_for_an_owner_is_named_in_the_log_by_one_look_at_the_nodes(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    config = small(method="fedavg", set=f"federation.sites={NODES} partition.kind=iid")
    grid = Unapproved(client_app, NODES, config, silent=30)
    question = Question(0, held_out=False, max_examples=10**6)
    wait_for_sites(grid, NODES, question, deadline=0.5, min_replies=1)
    waits = [line for line in caplog.messages if line.startswith("partition-")]
    assert waits[0] == (
        "partition-0 (node 1000) waits for its owner's approval: its owner is asked until 20:00 UTC"
    )
    assert len(waits) == 30
    assert grid.looks <= 2
