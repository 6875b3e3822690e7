"""Sites that send what Flower cannot put together, or nobody asked for: refused by name, and the run goes on."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import TamperedGrid, run
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from inflating import ObjectGrid, dropped, npz, repeated, retyped, rewritten
from small import SMALL, Small

from common.errors import REASON_LENGTH
from common.privacy.events import Event
from common.privacy.ledger import PrivacyReport
from nectar.engines.local_grid import LocalGrid

pytestmark = pytest.mark.promise(
    "What comes over the wire",
    "A reply that Flower cannot put together, that is too large, or that answers for another "
    "site is refused. A header that claims 4 TB allocates nothing",
)


def saved(array: np.ndarray[Any, Any], *, pickles: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=pickles)
    return buffer.getvalue()


DEEP = b"[" * 100_000

PULLED = [
    (rewritten("ArrayChunk", npz), "array 0 .* is not an array as numpy.save writes one"),
    (rewritten("ArrayChunk", lambda body: body[:-1]), "announces .* bytes .* follow"),
    (
        rewritten("ArrayChunk", lambda body: saved(np.array([{}]), pickles=True)),
        "header is not that",
    ),
    (rewritten("Array", lambda body: b"not JSON"), r"cannot be put together \(JSONDecodeError\)"),
    (rewritten("Array", lambda body: DEEP), r"cannot be put together \(RecursionError\)"),
    (rewritten("Array", lambda body: b"[]"), "cannot be put together"),
    (
        rewritten("Array", lambda body: b" " * 5 * 2**20 + body),
        "what describes the reply's arrays takes",
    ),
    (rewritten("ArrayRecord", lambda body: b"{}"), "cannot be put together"),
    (rewritten("RecordDict", lambda body: b"[]"), "cannot be put together"),
    (rewritten("MetricRecord", lambda body: b"\xff" * 9), "cannot be put together"),
    (rewritten("MetricRecord", lambda body: b"\n\x03\n\x01x"), "cannot be put together"),
    (dropped("ArrayChunk"), r"cannot be put together \(KeyError\)"),
    (retyped("MetricRecord", "ConfigRecord"), "array records and 0 metric records"),
    (retyped("MetricRecord", "ArrayChunk"), "cannot be put together"),
    (retyped("Message", "RecordDict"), "cannot be put together"),
    (retyped("Array", "Unheard"), "cannot be put together"),
    (rewritten("ConfigRecord", lambda body: b" " * 2**18), "the reply's metadata take 26"),
    (repeated(10_000), "arrays claim .* where .* is the most that was requested"),
]


def refusals(tmp_path: Path, number: int, grid: type[LocalGrid], **options: Any) -> list[str]:
    """Run one round of ``number`` hostile sites and an honest last one; return why each of them did not count."""
    config = {
        "method": "fedavg",
        "rounds": 1,
        "output-dir": str(tmp_path),
        "set": f"{SMALL} partition.kind=iid federation.sites={number + 1}",
    }
    line = run(config, grid, **options).metrics()[1]
    assert line["accepted"] == [f"partition-{number}"]
    return [line["rejected"].get(f"partition-{i}", "") for i in range(number)]


def test_what_flower_cannot_put_together_is_that_sites_rejection(tmp_path: Path) -> None:
    edits = {i: edit for i, (edit, _) in enumerate(PULLED)}
    message = refusals(tmp_path, len(PULLED), ObjectGrid, edits=edits)
    for reason, (_, expected) in zip(message, PULLED, strict=True):
        assert re.search(expected, reason), (expected, reason)


def test_the_same_in_a_sites_evaluation(small: Small) -> None:
    config = small(method="fedavg", rounds=1, set="evaluation.on=sites data.site_holdout=0.2")
    edit = rewritten("MetricRecord", lambda body: b"\xff" * 9)
    line = run(config, ObjectGrid, edits={1: edit}, kind="evaluate").metrics()[1]
    assert line["accepted"] == ["partition-0", "partition-1", "partition-2"]
    assert line["unevaluated"] == {"partition-1": "the reply cannot be put together (DecodeError)"}


class Impostor(ObjectGrid):
    """The second device's reply says that it answers what the first was asked, or that it is the first's."""

    def __init__(self, *args: Any, lie: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lie = lie
        self._first: dict[str, Any] = {}

    def _carried(self, reply: Message) -> Message:
        about = reply.metadata.__dict__
        if reply.metadata.message_type == "train":
            self._first = self._first or dict(about)
            if reply.metadata.src_node_id == self.get_node_ids()[1]:
                about[self._lie] = self._first[self._lie]
        return super()._carried(reply)


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ("_reply_to_message_id", "answers another message"),
        ("_src_node_id", "comes from another node"),
    ],
)
def test_no_site_answers_in_the_place_of_another(small: Small, lie: str, said: str) -> None:
    line = run(small(method="fedavg", rounds=1), Impostor, edits={}, lie=lie).metrics()[1]
    assert line["accepted"] == ["partition-0", "partition-2"]
    assert line["rejected"] == {"partition-1": f"the reply says that it {said}"}


# ---- what is put together, and is not what was asked for ------------------------------------------------


def holding(make: Callable[[RecordDict], Iterable[tuple[str, Any]]]) -> Any:
    """Return a tamper that puts other records into the reply."""

    def tamper(instruction: Message, reply: Message) -> Message:
        return Message(RecordDict(dict(make(reply.content))), reply_to=instruction)

    return tamper


def arrays(record: ArrayRecord) -> Any:
    return holding(lambda old: {"arrays": record, "metrics": old["metrics"]}.items())


def figures(**more: Any) -> Any:
    def made(old: RecordDict) -> Iterable[tuple[str, Any]]:
        return {
            "arrays": old["arrays"],
            "metrics": MetricRecord({**old["metrics"], **more}),
        }.items()

    return holding(made)


def beside(more: Mapping[str, ConfigRecord | MetricRecord]) -> Any:
    return holding(lambda old: {"arrays": old["arrays"], "metrics": old["metrics"], **more}.items())


def claims(shape: str) -> ArrayRecord:
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    data = b"\x93NUMPY\x01\x00\x76\x00" + head.encode() + b"\0" * 8
    return ArrayRecord({"0": Array("float32", (1,), "numpy.ndarray", data)})


LARGE = Array(np.zeros(4_000_000, np.float32))


SENT = [
    (arrays(ArrayRecord([np.zeros(7_500_000, np.float32)])), "take 30000128 bytes where"),
    (arrays(ArrayRecord({str(i): LARGE for i in range(99)})), "take 1584012672 bytes where"),
    (arrays(claims("(1000000000000,)")), "announces 4000000000000 bytes of float32, but 8 follow"),
    (arrays(claims("(" + "9" * 18 + ", " + "9" * 18 + ")")), "announces"),
    (arrays(claims("(" * 40 + ")" * 40)), "its header is not that of an array of numbers"),
    (arrays(ArrayRecord([np.array(["text"])])), "its header is not that of an array of numbers"),
    (figures(**{f"figure-{i}": 1.0 for i in range(60)}), "brings .* figures where at most 48"),
    (figures(**{"x" * 65: 1.0}), "is named 'x+' where 1 to 64 printable characters"),
    (figures(**{"a\nb": 1.0}), r"is named 'a\\nb' where 1 to 64 printable characters"),
    (figures(**{"train-loss": [0.0] * 1000}), "where a finite number was expected"),
    (figures(**{"num-examples": 10**10}), "where a count from 1 to"),
    (figures(**{"num-examples": 10**19}), "was expected, at most 1e.12"),
    (figures(**{"train-loss": 1e308}), "was expected, at most 1e.12"),
    (holding(lambda old: []), "the reply holds 0 array records"),
    (beside({f"more-{i}": ConfigRecord({}) for i in range(7)}), "holds 9 records where 8 is"),
    (
        beside({"more": ConfigRecord({})}),
        "record 'more' where about, arrays, metrics, privacy were",
    ),
    (beside({"about": ConfigRecord({"a": "x" * 2**18})}), "the reply's metadata take 26"),
    (beside({"about": MetricRecord({"a": [0] * 2**15})}), "the reply's metadata take 26"),
]


def test_what_nobody_asked_for_is_that_sites_rejection(tmp_path: Path) -> None:
    tampers = {i: tamper for i, (tamper, _) in enumerate(SENT)}
    message = refusals(tmp_path, len(SENT), TamperedGrid, tampers=tampers)
    for reason, (_, expected) in zip(message, SENT, strict=True):
        assert re.search(expected, reason), (expected, reason)
        assert len(reason) <= REASON_LENGTH


def test_a_record_that_flower_cannot_count_ends_no_run(small: Small) -> None:
    """Flower counts no bytes of an empty text; what stands beside the figures is not read at all."""
    odd = beside({"about": ConfigRecord({"empty": "", "none": []})})
    line = run(small(method="fedavg", rounds=1), TamperedGrid, tampers={1: odd}).metrics()[1]
    assert line["accepted"] == ["partition-0", "partition-1", "partition-2"]


class Crowded(ObjectGrid):
    """The second device's reply goes through Flower's objects with a hundred records of 4 kB beside its arrays."""

    def _carried(self, reply: Message) -> Message:
        hostile = reply.metadata.src_node_id == self.get_node_ids()[1]
        if hostile and reply.metadata.message_type == "train":
            for i in range(100):
                reply.content[f"more-{i}"] = ConfigRecord({"text": f"{i:05}" * 800})
        return super()._carried(reply)


@pytest.mark.parametrize("method", ["fedavg", "flwr.serverapp.strategy:FedAvg"])
def test_what_stands_beside_the_arrays_is_bounded_in_sum(small: Small, method: str) -> None:
    """No single one of the records is large, and Flower is not left to put all of them together."""
    line = run(small(method=method, rounds=1), Crowded, edits={}).metrics()[1]
    assert line["accepted"] == ["partition-0", "partition-2"]
    assert re.search("the reply's metadata take 26", line["rejected"]["partition-1"])


def more(extra: Mapping[str, ConfigRecord | MetricRecord]) -> Any:
    """Return a tamper that adds records to whatever the reply holds, or takes the place of one."""
    return holding(lambda old: {**old, **extra}.items())


CROWDS = {
    "another name": (more({"x" * 99: ConfigRecord({})}), f"a record '{'x' * 64}' where"),
    "too many": (more({f"more-{i}": ConfigRecord({}) for i in range(9)}), "11 records where 8 is"),
    "too large": (more({"about": ConfigRecord({"a": "x" * 2**18})}), "reply's metadata take 26"),
}


@pytest.mark.parametrize("crowd", CROWDS)
def test_the_same_allowance_holds_of_an_evaluation(small: Small, crowd: str) -> None:
    tamper, message = CROWDS[crowd]
    config = small(method="fedavg", rounds=1, set="evaluation.on=sites data.site_holdout=0.2")
    line = run(config, TamperedGrid, tampers={1: tamper}, kind="evaluate").metrics()[1]
    assert line["accepted"] == ["partition-0", "partition-1", "partition-2"]
    assert list(line["unevaluated"]) == ["partition-1"]
    assert re.search(message, line["unevaluated"]["partition-1"])


TOLD = PrivacyReport((Event("dp-sgd", 1.0, 1.0, 1),))


@pytest.mark.parametrize(("more", "accepted"), [(5, True), (6, False)])
def test_a_flower_strategy_takes_any_eight_records(small: Small, more: int, accepted: bool) -> None:
    odd = beside({f"more-{i}": ConfigRecord({"text": "x"}) for i in range(more + 1)})
    config = small(method="flwr.serverapp.strategy:FedAvg", rounds=1)
    line = run(config, TamperedGrid, tampers={1: odd}).metrics()[1]
    assert ("partition-1" in line["accepted"]) is accepted


@pytest.mark.extended
def test_nothing_of_a_reply_with_an_undeclared_record_is_kept(small: Small) -> None:
    """Not what it says of its site's privacy either, which is taken of other rejected replies."""
    odd = beside({"privacy": ConfigRecord({**TOLD.to_config()}), "more": ConfigRecord({})})
    config = small(
        method="fedavg", rounds=1, set="privacy.noise_multiplier=1 privacy.counts=public"
    )
    line = run(config, TamperedGrid, tampers={1: odd}).metrics()[1]
    assert "a record 'more' where" in line["rejected"]["partition-1"]
    assert line["notes"]["spent"].keys() == {"partition-0", "partition-2"}


def test_one_sites_word_is_not_the_median_of_a_round(small: Small) -> None:
    """Within the bounds a figure of one site's still owns the mean, beside which stands the median."""
    tampers = {1: figures(**{"train-loss": 9e11})}
    line = run(small(method="fedavg", rounds=1), TamperedGrid, tampers=tampers).metrics()[1]
    message = sorted(each["train-loss"] for each in line["devices"].values())
    assert line["train"]["train-loss"] > 1e11
    assert line["train_median"]["train-loss"] == message[1] < 100
