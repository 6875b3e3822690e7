"""Read a device's reply: accept all of it, or reject it with a reason."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from functools import wraps
from logging import getLogger
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from common.errors import PayloadError, reason
from common.privacy.events import Event
from common.privacy.ledger import MOST_EVENTS, RECORD, LedgerTip, PrivacyReport, merge_events
from common.sites import Site, site_order
from common.specs.updates import COUNTS
from common.wire import npy
from common.wire.form import Payload, Spec

logger = getLogger("flwr")
Asked = TypeVar("Asked")
Kind = TypeVar("Kind")

#: figures that a reply may bring, and the characters of a figure's name
MAX_FIGURES, MAX_FIGURE_NAME = 48, 64

#: the largest magnitude of a figure that a site reports
MAX_FIGURE = 1e12

#: records of a reply, the arrays among them
MAX_RECORDS = 8

#: names of the records of a reply that a site evaluates with
EVALUATION_RECORDS = frozenset({"metrics", "about"})

#: more images than any site holds; a larger count is a broken one
MAX_EXAMPLES = 10**9

#: Flower's own error codes in words that do not depend on the engine
_FLOWER_ERRORS = {
    0: "the device's worker died",
    1: "the device could not load the app",
    3: "the message expired or its node was removed",
    4: "the reply is no longer available",
    5: "the node is unavailable",
    6: "the message was refused by the device's Flower mods",
    7: "the device received an invalid app bundle",
    8: "the device's process stopped responding",
}


@dataclass(frozen=True)
class Upload:
    """An accepted reply: the validated payload, its number of examples, and its figures.

    ``inside`` names the sites whose mean or sum the payload is, where it came out of a secret sum: ``examples`` are
    then their number.
    """

    site: Site
    payload: Payload
    examples: int
    metrics: Mapping[str, float]
    inside: tuple[str, ...] = ()

    def payload_as(self, cls: type[Kind]) -> Kind:
        """Return the payload as a ``cls``; TypeError if the method requested another kind than it reads."""
        if not isinstance(self.payload, cls):
            kind = type(self.payload).__name__
            raise TypeError(f"a {kind} came, as requested, but the method reads a {cls.__name__}")
        return self.payload


@dataclass(frozen=True)
class SiteEvaluation:
    """One site's figures on the images it held out."""

    examples: int
    accuracy: float
    loss: float
    auc: float | None = None
    counts: Sequence[int] = ()  # as `COUNTS` has them


@dataclass
class Outcome:
    """The outcome of a round's replies, by site; for a clipped one, the share of its length that counts."""

    accepted: dict[str, Mapping[str, float]] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)
    evaluated: dict[str, SiteEvaluation] = field(default_factory=dict)
    unevaluated: dict[str, str] = field(default_factory=dict)
    floats: dict[str, int] = field(default_factory=dict)  # numbers sent, as the papers count them
    shortened: dict[str, float] = field(default_factory=dict)
    secret: dict[str, Any] = field(default_factory=dict)  # what the line says of a secret sum

    def accept(self, upload: Upload) -> None:
        """Note an upload."""
        self.accepted[upload.site.name] = upload.metrics
        self.floats[upload.site.name] = upload.payload.floats


def note_failure(failed: dict[str, str], site: str, why: str, what: str) -> None:
    """Note why a site's reply counts for nothing; in the log only where it is no other site's reason too."""
    if why not in failed.values():
        logger.warning("%s %s: %s", what, site, why)
    failed[site] = why


def reasons_in_words(failed: Mapping[str, str]) -> str:
    """Describe why sites failed, each reason once: who gave it first, and how many more."""
    first = {why: site for site, why in reversed([*failed.items()])}
    more = {
        why: f" and {n - 1} more" if n > 1 else "" for why, n in Counter(failed.values()).items()
    }
    return "; ".join(f"{first[why]}{others}: {why}" for why, others in more.items())


def rejection_reason(reply: Message) -> str:
    """Return why ``reply`` carries an error, in the same words in every engine."""
    known = _FLOWER_ERRORS.get(reply.error.code)
    if known is not None:
        return known
    # Flower reports an exception outside a ClientApp as <class 'X'>:<'its text'>.
    message = str(reply.error.reason)
    wrapped = re.fullmatch(r"<class '[\w.]+'>:<'(.*)'>", message, re.DOTALL)
    return reason(wrapped[1] if wrapped else message)


@contextmanager
def as_payload_error() -> Iterator[None]:
    """Raise PayloadError instead of any other exception within, MemoryError included."""
    try:
        yield
    except PayloadError:
        raise
    except Exception as error:
        logger.debug("what came could not be read", exc_info=True)
        raise PayloadError(f"the reply cannot be read ({type(error).__name__})") from None


def require_names(reply: Message, names: Collection[str] | None) -> None:
    """Refuse a reply with a record of a name that is not one of ``names``, before any of it is read: PayloadError."""
    if names is None or not reply.has_content():
        return
    if others := set(reply.content) - set(names):
        raise PayloadError(
            f"the reply holds a record {min(others)[:MAX_FIGURE_NAME]!r} where {', '.join(sorted(names))} were expected"
        )


def require_records(reply: Message) -> None:
    """Refuse a reply that holds more than arrays and a little metadata, before any of it is read.

    Raises
    ------
    PayloadError
        If it has more records than a reply has, or more metadata than is allowed.
    """
    if not reply.has_content():
        return
    with as_payload_error():
        records = reply.content
        if len(records) > MAX_RECORDS:
            raise PayloadError(
                f"the reply holds {len(records)} records where {MAX_RECORDS} is the most"
            )
        metadata_bytes = sum(len(name) for name in records) + sum(
            len(key) + _size(value)
            for record in records.values()
            if isinstance(record, MetricRecord | ConfigRecord)
            for key, value in record.items()
        )
        _Allowance(0).take(_METADATA, metadata_bytes)


def _size(value: object) -> int:
    """Return the size of a record's value: the length of a text or bytes, eight for a number."""
    if isinstance(value, list):
        return sum(map(_size, value))
    return len(value) if isinstance(value, str | bytes) else 8


def read_upload(reply: Message, site: Site, spec: Spec) -> Upload:
    """Validate ``reply`` against what was requested of ``site``; PayloadError with the reason if it differs."""
    if reply.has_error():
        raise PayloadError(rejection_reason(reply))
    with as_payload_error():
        content = reply.content
        sent = [record for record in content.values() if isinstance(record, ArrayRecord)]
        figures = [record for record in content.values() if isinstance(record, MetricRecord)]
        if len(sent) != 1 or len(figures) != 1:
            raise PayloadError(
                f"the reply holds {len(sent)} array records and {len(figures)} metric records where one of each was "
                "expected"
            )
        metrics = _read_metrics(figures[0])
        examples = _pop_examples(metrics)
        if examples != site.examples:
            raise PayloadError(
                f"num-examples is {examples} where the roll call said {site.examples}"
            )
        arrays = read_arrays(sent[0], spec.max_bytes)
        payload = spec.decode(arrays)
    return Upload(site, payload, examples, metrics)


def read_evaluation(
    reply: Message, held_out: int, classes: int = 0, measure: str = "accuracy"
) -> SiteEvaluation:
    """Validate the evaluation of a site that holds out ``held_out`` images; PayloadError if it is not that."""
    if reply.has_error():
        raise PayloadError(rejection_reason(reply))
    with as_payload_error():
        records = list(reply.content.metric_records.values())
        if len(records) != 1:
            raise PayloadError(
                f"the reply holds {len(records)} metric records where one was expected"
            )
        figures = dict(records[0])
        counts = figures.pop(COUNTS, ()) if measure != "accuracy" else ()
        metrics = _read_metrics(figures)
        examples = _pop_examples(metrics)
    if examples != held_out:
        raise PayloadError(f"num-examples is {examples} where the roll call said {held_out}")
    accuracy, loss = metrics.get("accuracy", -1.0), metrics.get("loss", -1.0)
    if loss < 0 or not 0 <= accuracy <= 1:
        raise PayloadError("the evaluation lacks a loss of 0 or more, or an accuracy from 0 to 1")
    if measure == "accuracy":
        return SiteEvaluation(examples, accuracy, loss)
    numbers = _read_counts(counts, examples, accuracy, classes)
    ranked = measure == "auc" and len({place // classes for place in numbers[::2]}) > 1
    auc = metrics.get("auc", -1.0) if ranked else None
    if auc is not None and not 0 <= auc <= 1:
        raise PayloadError("the evaluation lacks an auc from 0 to 1")
    return SiteEvaluation(examples, accuracy, loss, auc, numbers)


def _read_counts(claimed: object, examples: int, accuracy: float, classes: int) -> Sequence[int]:
    """Return a site's counts by class as `COUNTS` has them; PayloadError unless they are of its examples."""
    numbers = claimed if isinstance(claimed, list) and {*map(type, claimed)} == {int} else []
    places, counts = numbers[::2], numbers[1::2]
    there = all(0 <= place < classes**2 for place in places) and min(counts, default=0) > 0
    once = len(places) == len(counts) == len({*places}) and sum(counts) == examples
    hits = sum(n for at, n in zip(places, counts, strict=False) if at % (classes + 1) == 0)
    if not (there and once) or abs(hits - accuracy * examples) > 1e-3:
        raise PayloadError(
            f"its counts by true and predicted class are not of {examples} examples of {classes} classes, "
            f"{accuracy:.4f} of them right"
        )
    return numbers


def read_arrays(record: ArrayRecord, max_bytes: int) -> list[np.ndarray[Any, Any]]:
    """Return the arrays in their order, as views of what came.

    Raises
    ------
    PayloadError
        If they take more than ``max_bytes`` together, found before one of them is read, or one is not an array.
    """
    total = sum(map(npy.size_of, record.values()))
    if total > max_bytes:
        raise PayloadError(
            f"the reply's arrays take {total} bytes where {max_bytes} is the most that was requested"
        )
    arrays = []
    for index, array in enumerate(record.values()):
        try:
            arrays.append(npy.values_of(array))
        except PayloadError as error:
            raise PayloadError(f"array {index} of the reply cannot be read: {error}") from None
    return arrays


def _pop_examples(metrics: dict[str, float]) -> int:
    examples = metrics.pop("num-examples", None)
    if examples is None or not 1 <= examples <= MAX_EXAMPLES or examples != int(examples):
        raise PayloadError(
            f"num-examples is {examples} where a count from 1 to {MAX_EXAMPLES} was expected"
        )
    return int(examples)


def _read_metrics(record: Mapping[str, Any]) -> dict[str, float]:
    if len(record) > MAX_FIGURES:
        raise PayloadError(
            f"the reply brings {len(record)} figures where at most {MAX_FIGURES} are allowed"
        )
    metrics = {}
    for key, value in record.items():
        if not 1 <= len(key) <= MAX_FIGURE_NAME or not key.isprintable():
            raise PayloadError(
                f"a figure is named {key[:MAX_FIGURE_NAME]!r} where 1 to {MAX_FIGURE_NAME} printable characters are "
                "allowed"
            )
        if isinstance(value, list) or not abs(value) <= MAX_FIGURE:  # NaN is not, either
            raise PayloadError(
                f"the metric '{key}' is {str(value)[:40]} where a finite number was expected, at most "
                f"{MAX_FIGURE:g} and at least {-MAX_FIGURE:g}"
            )
        metrics[key] = float(value)
    return metrics


def matched(
    replies: Iterable[Message], sent: Sequence[tuple[Message, Site, Asked]]
) -> Iterator[tuple[Message, Site, Asked]]:
    """Return each reply with the site and what it was asked; a list is put into site order first.

    Flower numbers a message when it is sent, and a wave is sent when its first reply is requested: the ids
    are read as late as that. A reply to none of ``sent`` is passed over.
    """
    asked: dict[str, tuple[Site, Asked]] = {}

    def of(reply: Message) -> tuple[Message, Site, Asked] | None:
        answers = reply.metadata.reply_to_message_id
        if answers not in asked:
            asked.update((m.metadata.message_id, (site, what)) for m, site, what in sent)
        return (reply, *asked[answers]) if answers in asked else None

    found = filter(None, map(of, replies))  # a generator would keep the last one that it gave
    if isinstance(replies, list):
        return iter(sorted(found, key=lambda each: site_order(each[1].name)))
    return found


# ---- inflating -----------------------------------------------------------------------------------
# What Flower may make of a reply's bytes while it pulls them: no more than was requested.
#
# A message arrives as objects that name each other, and Flower puts them together before any code of an app sees
# them. An Array names its chunks by number, as often as it likes: a megabyte that is sent becomes a gigabyte. Flower
# offers no bound, so the public classes that it puts together check first; outside ``allowing`` they do as they
# always did.

#: bytes of a reply's metadata together: figures, other records, a message's address
MAX_METADATA_BYTES = 256 * 2**10

#: bytes of what says how a reply's arrays are put together: names, shapes, the numbers of chunks
MAX_DESCRIBING_BYTES = 4 * 2**20


#: the parts of a reply of which each may take so many bytes, by what is said where it takes more
_ARRAYS = "the reply's arrays claim {} bytes where {} is the most that was requested"
_DESCRIBING = "what describes the reply's arrays takes {} bytes where {} is the most"
_METADATA = "the reply's metadata take {} bytes where {} is the most"


class _Allowance:
    """The bytes that each part of one reply may hold, and those that it does."""

    def __init__(self, arrays: int) -> None:
        self._most = {
            _ARRAYS: arrays,
            _DESCRIBING: MAX_DESCRIBING_BYTES,
            _METADATA: MAX_METADATA_BYTES,
        }
        self._taken = dict.fromkeys(self._most, 0)

    def take(self, part: str, size: int) -> None:
        """Count bytes of a part; PayloadError if they are too many."""
        self._taken[part] += size
        if self._taken[part] > self._most[part]:
            raise PayloadError(part.format(self._taken[part], self._most[part]))


_allowance: ContextVar[_Allowance | None] = ContextVar("allowance", default=None)


@contextmanager
def allowing(max_bytes: int) -> Iterator[None]:
    """Limit arrays inflated in this thread to ``max_bytes``; Flower's call raises PayloadError beyond."""
    token = _allowance.set(_Allowance(max_bytes))
    try:
        yield
    finally:
        _allowance.reset(token)


def _check(kind: type, content: bytes, children: Mapping[str, Any]) -> None:
    allowance = _allowance.get()
    if allowance is None:
        return
    allowance.take(_DESCRIBING if kind in (Array, ArrayRecord) else _METADATA, len(content))
    if kind is Array:
        allowance.take(_ARRAYS, _claimed(content, children))


def _claimed(content: bytes, children: Mapping[str, Any]) -> int:
    """Return how many bytes an Array will have: its header names chunks, its body numbers them in their order."""
    head, _, body = content.partition(b"\x00")
    names = head.decode().split(" ")[1].split(",")
    sizes = {i: len(children[name].data) for i, name in enumerate(names) if name}
    return sum(sizes[i % len(names)] for i in json.loads(body)["arraychunk_ids"])


def _guard(kind: Any) -> None:
    plain = kind.inflate.__func__

    @wraps(plain)
    def inflate(cls: type, object_content: bytes, children: Any = None) -> Any:
        _check(kind, object_content, children or {})
        return plain(cls, object_content, children)

    kind.inflate = classmethod(inflate)


for _kind in (Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict):
    _guard(_kind)


# ---- spending ------------------------------------------------------------------------------------
# What a run's sites have been charged, and the heads of their ledgers that were seen: the server's side of both.


@dataclass
class PrivacyBudgetUsage:
    """Kept with a checkpoint, reported in a round's line.

    Attributes
    ----------
    events : dict of str to tuple of Event
        By site, those of this run. A site with a ledger reports all of them each time, so that one whose reply was lost
        is counted with the next; of a simulated one they are those of the replies that came.
    seeded : dict of str to bool
        Whether the noise was the run's seed's.
    ledger_tips : dict of str to LedgerTip
        The newest tip of each site's ledger that was seen, in this run or in one before it.
    """

    events: dict[str, tuple[Event, ...]] = field(default_factory=dict)
    seeded: dict[str, bool] = field(default_factory=dict)
    ledger_tips: dict[str, LedgerTip] = field(default_factory=dict)

    def take_from(self, reply: Message, site: str, noises: Collection[float] | None) -> None:
        """Note a reply's charges, of ``noises`` alone if given; PayloadError if unreadable or of other noise."""
        report = privacy_report_in(reply)
        if report is None:
            return
        if noises is not None and (
            not noises or any(event.noise_multiplier not in noises for event in report.events)
        ):
            raise PayloadError("it says that it was charged for noise that the run does not have")
        self.take(site, report)

    def take(self, site: str, report: PrivacyReport) -> None:
        """Note what came with a reply, accepted or not; PayloadError of more kinds than a run has."""
        before = () if report.complete else self.events.get(site, ())
        events = merge_events((*before, *report.events))
        if len(events) > MOST_EVENTS:
            raise PayloadError(
                f"it says that it was charged for {len(events)} kinds of events in this run where {MOST_EVENTS} is the "
                "most"
            )
        self.events[site] = events
        self.seeded[site] = report.seeded or self.seeded.get(site, False)
        self.update_tip(site, report.head)

    def update_tip(self, site: str, head: LedgerTip | None) -> None:
        """Keep the longer of a head and the one that is known."""
        if head is not None and head.length > self.ledger_tips.get(site, LedgerTip()).length:
            self.ledger_tips[site] = head

    def state(self) -> dict[str, str]:
        """Return it in a checkpoint's form; nothing where nothing was charged or seen."""
        if not self.events and not self.ledger_tips:
            return {}
        events = {site: [e.to_dict() for e in each] for site, each in self.events.items()}
        heads = {site: asdict(head) for site, head in self.ledger_tips.items()}
        return {"said": json.dumps({"events": events, "seeded": self.seeded, "heads": heads})}

    def put_back(self, state: Mapping[str, str]) -> None:
        """Restore what ``state`` returned; a head that was seen since stays."""
        message = json.loads(state["said"])
        self.events = {
            site: tuple(map(Event.read, each)) for site, each in message["events"].items()
        }
        self.seeded = message["seeded"]
        for site, head in message["heads"].items():
            self.update_tip(site, LedgerTip.read(head))


def privacy_report_in(reply: Message) -> PrivacyReport | None:
    """Return a reply's report of its site's charges, if any; PayloadError if it is malformed."""
    if not reply.has_content() or RECORD not in reply.content:
        return None
    try:
        return PrivacyReport.read(dict(reply.content.config_records[RECORD]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise PayloadError(f"what it says of its privacy cannot be read ({error})") from None
