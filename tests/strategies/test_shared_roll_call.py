"""A simulation in this process asks nobody who is there: its grid says what each node would."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from real_site import Site as RealSite
from small import Small

from client_app.app import app as client_app
from common.config.loading import load
from common.division import Division
from common.methods import METHODS
from nectar.engines.local_grid import LocalGrid
from server_app.app import make_strategy
from strategies.exchange.membership import Attendance, Question, wait_for_sites

pytestmark = pytest.mark.promise(
    "Absurd figures, and the roll call",
    "A real site speaks for itself alone",
)

Config = Mapping[str, Any]

EACH = "query.roll_call"


class Counting(LocalGrid):
    """Notes what is asked, and in how many contexts the app was called."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asked: list[str] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        self.asked += [m.metadata.message_type for m in messages]
        return super().push_messages(messages)


def attendance(
    config: Config, question: Question, *, one_for_all: bool, **node: Any
) -> tuple[Attendance, list[str]]:
    """Return who answers, and what was asked for that."""
    clients = load(config).federation.sites
    grid = Counting(client_app, clients, config, node, one_for_all=one_for_all)
    there = wait_for_sites(grid, clients, question, deadline=0.3, min_replies=1)
    return there, grid.asked


def asked_by(config: Config) -> Question:
    return make_strategy(Division(load(config)).run).question


CASES = {
    "nothing held out": "",
    "held out": "evaluation.on=sites data.site_holdout=0.3",
    "one class a site": "partition.kind=by_class partition.classes_per_client=1 data.site_holdout=0.5 "
    "federation.sites=12",
    "few images": "partition.kind=shards data.images=40 data.site_holdout=0.4 federation.sites=10",
    "private": "privacy.noise_multiplier=1 privacy.examples=100",
    "private, counts public": "privacy.noise_multiplier=1 privacy.counts=public",
}


@pytest.mark.parametrize(
    ("case", "classes"),
    [*product(CASES, [0]), *product([c for c in CASES if c != "private"], [10])],
)
def test_it_says_what_each_would_say(small: Small, case: str, classes: int) -> None:
    config = small(method="fedavg", set=CASES[case])
    resolved = load(config)
    question = Question(classes, resolved.evaluation.on == "sites", max_examples=10**6)
    each, one_by_one = attendance(config, question, one_for_all=False)
    together, asked = attendance(config, question, one_for_all=True)
    assert together == each
    assert len(each.sites) == resolved.federation.sites
    assert one_by_one == [EACH] * resolved.federation.sites
    assert asked == []


@pytest.mark.parametrize("method", METHODS)
def test_every_methods_question_has_the_same_answer(small: Small, method: str) -> None:
    words = "model.name=vae" if method in ("fedvae", "feddpms") else ""
    config = small(method=method, rounds=1, set=words)
    question = asked_by(config)
    assert (
        attendance(config, question, one_for_all=True)[0]
        == (attendance(config, question, one_for_all=False)[0])
    )


def test_texts_count_the_places_that_have_a_target(reddit_config: Small) -> None:
    config = reddit_config("evaluation.on=sites data.site_holdout=0.4")
    question = asked_by(config)
    together, messages = attendance(config, question, one_for_all=True)
    assert together == attendance(config, question, one_for_all=False)[0]
    assert messages == []
    assert all(site.held_out > 1 for site in together.sites), "places, not texts"


def test_what_the_roll_call_costs_does_not_grow_with_the_nodes(small: Small) -> None:
    """No message, and a context for one node alone; none is kept."""
    config = small(method="fedavg", set="federation.sites=500 partition.kind=iid")
    made: list[int] = []

    class Watched(Counting):
        def node_config(self, node_id: int) -> dict[str, str | int | float | bool]:
            made.append(node_id)
            return super().node_config(node_id)

    grid = Watched(client_app, 500, config, one_for_all=True)
    there = wait_for_sites(grid, 500, asked_by(config), deadline=5.0, min_replies=1)
    assert len(there.sites) == 500
    assert grid.asked == []
    assert made == [grid.get_node_ids()[0]]
    assert not grid._kept


def test_a_claim_too_large_is_refused_by_name_as_ever(small: Small) -> None:
    config = small(method="fedavg", set="partition.kind=quantity partition.alpha=0.3")
    sizes = sorted(
        site.examples for site in attendance(config, asked_by(config), one_for_all=True)[0].sites
    )
    question = Question(0, held_out=False, max_examples=sizes[0])
    together, messages = attendance(config, question, one_for_all=True)
    assert together == attendance(config, question, one_for_all=False)[0]
    assert messages == [EACH] * len(sizes)
    assert len(together.sites) == 1
    assert len(together.refused) == len(sizes) - 1


def test_no_counts_are_told_where_privacy_asks_for_none(small: Small) -> None:
    config = small(method="fedavg", set=CASES["private"])
    grid = LocalGrid(client_app, 3, config, one_for_all=True)
    reply = asked_of(grid, "class-counts")
    assert "reports no counts by class" in str(reply.error.reason)
    told, _ = attendance(config, asked_by(config), one_for_all=True)
    assert {site.examples for site in told.sites} == {1}


def asked_of(grid: LocalGrid, *fields: str) -> Message:
    content = RecordDict({"config": ConfigRecord(dict.fromkeys(fields, True))})
    message = Message(content, grid.get_node_ids()[0], EACH, group_id="roll-call")
    (reply,) = grid.pull_messages(grid.push_messages([message]))
    return reply


def test_nodes_that_differ_in_more_than_their_partition_are_asked_one_by_one(
    small: Small, tmp_path: Any
) -> None:
    config = small(method="fedavg")
    node = {"state-dir": str(tmp_path / "kept")}
    _, messages = attendance(config, asked_by(config), one_for_all=True, **node)
    assert messages == [EACH] * 3
    lines = (tmp_path / "kept" / "released.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3, "each has noted its answer"


def test_a_real_site_speaks_for_itself_alone(small: Small) -> None:
    """There is no question in which a site is asked for others."""
    site = RealSite(small(method="fedavg"))
    about = site._ask(EACH, RecordDict({"config": ConfigRecord({"class-counts": True})})).content
    assert about["about"]["site"] == "partition-0"
    assert site._ask("query.partitions", RecordDict({"config": ConfigRecord({})})).has_error()
