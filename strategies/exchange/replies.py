"""Read a device's reply: accept it whole, or reject it with a reason; nothing in between."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message

from common.errors import PayloadError, one_line
from common.sites import Site
from common.wire import Payload, Spec

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
    """An accepted reply: the validated payload, the images behind it and the figures beside it."""

    site: Site
    payload: Payload
    examples: int
    metrics: Mapping[str, float]


@dataclass
class Outcome:
    """What became of a round's replies, by site."""

    accepted: dict[str, Mapping[str, float]] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)
    unevaluated: dict[str, str] = field(default_factory=dict)
    floats_up: int = 0

    def accept(self, upload: Upload) -> None:
        """Note an upload."""
        self.accepted[upload.site.name] = upload.metrics
        self.floats_up += upload.payload.floats

    def take_back(self, upload: Upload, reason: str) -> None:
        """Note an accepted upload as rejected."""
        del self.accepted[upload.site.name]
        self.rejected[upload.site.name] = reason
        self.floats_up -= upload.payload.floats


def reason_of(reply: Message) -> str:
    """Return why ``reply`` carries an error, in the same words in every engine."""
    known = _FLOWER_ERRORS.get(reply.error.code)
    return known if known is not None else one_line(str(reply.error.reason)[:400])


def read_upload(reply: Message, site: Site, spec: Spec) -> Upload:
    """Validate ``reply`` against what ``site`` was asked for.

    Raises
    ------
    PayloadError
        With the reason, if the reply is an error or anything else than was asked for.
    """
    if reply.has_error():
        raise PayloadError(reason_of(reply))
    content = reply.content
    if len(content.array_records) != 1 or len(content.metric_records) != 1:
        raise PayloadError(
            f"the reply holds {len(content.array_records)} array records and {len(content.metric_records)} "
            "metric records where one of each was expected"
        )
    metrics = _read_metrics(next(iter(content.metric_records.values())))
    examples = _pop_examples(metrics)
    if examples != site.examples:
        raise PayloadError(f"num-examples is {examples} where the roll call said {site.examples}")
    arrays = read_arrays(next(iter(content.array_records.values())))
    payload = spec.payload.decode(arrays, spec)
    return Upload(site, payload, examples, metrics)


@dataclass(frozen=True)
class SiteEvaluation:
    """One site's figures on the images it held out."""

    examples: int
    accuracy: float
    loss: float


def read_evaluation(reply: Message) -> SiteEvaluation:
    """Validate a site's evaluation; PayloadError with the reason if it is not one."""
    if reply.has_error():
        raise PayloadError(reason_of(reply))
    records = list(reply.content.metric_records.values())
    if len(records) != 1:
        raise PayloadError(f"the reply holds {len(records)} metric records where one was expected")
    metrics = _read_metrics(records[0])
    examples = _pop_examples(metrics)
    accuracy, loss = metrics.get("accuracy", -1.0), metrics.get("loss")
    if loss is None or not 0 <= accuracy <= 1:
        raise PayloadError("the evaluation lacks a loss, or an accuracy from 0 to 1")
    return SiteEvaluation(examples, accuracy, loss)


def read_arrays(record: ArrayRecord) -> list[np.ndarray[Any, Any]]:
    """Deserialise the arrays in their order; NumPy's loader refuses pickles, and any failure is a PayloadError."""
    try:
        return record.to_numpy_ndarrays()
    except Exception as error:
        raise PayloadError(f"an array cannot be read ({type(error).__name__})") from None


def _pop_examples(metrics: dict[str, float]) -> int:
    examples = metrics.pop("num-examples", None)
    if examples is None or not 1 <= examples <= MAX_EXAMPLES or examples != int(examples):
        raise PayloadError(
            f"num-examples is {examples} where a count from 1 to {MAX_EXAMPLES} was expected"
        )
    return int(examples)


def _read_metrics(record: Mapping[str, Any]) -> dict[str, float]:
    metrics = {}
    for key, value in record.items():
        if isinstance(value, list) or not math.isfinite(value):
            raise PayloadError(
                f"the metric '{key[:40]}' is {str(value)[:40]} where a finite number was expected"
            )
        metrics[key] = float(value)
    return metrics
