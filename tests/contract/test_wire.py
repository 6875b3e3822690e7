"""The wire's contract: every kind of payload arrives as it left, takes no more room than was said, or is refused.

What a kind means (labels, seeds, places, levels) stands in tests/common; what holds for all of them stands here, and a
new kind is a row of ``fuzzing.KINDS``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from fuzzing import KINDS, Kind, faults
from tampering import Arrays

from common.errors import REASON_LENGTH, PayloadError
from common.wire import npy
from common.wire.bundle import Bundle
from common.wire.form import Payload
from common.wire.images import SyntheticImages
from common.wire.int8_update import Int8Update
from common.wire.weights import Weights

pytestmark = pytest.mark.promise(
    "What comes over the wire",
    "Damaged payloads are a `PayloadError` or what their spec says",
    also="`python tests/helpers/fuzzing.py --payloads 100000 --seed 0`",
)

Numbers = np.ndarray[Any, Any]

#: what comes back in other values than were sent: a picture, and a model instead of its update
ROUNDED = [kind.name for kind in KINDS if "jpeg" in kind.name or "int8" in kind.name]


def named(kinds: list[Kind]) -> Any:
    return pytest.mark.parametrize(
        "kind", [pytest.param(kind, id=f"{i} {kind.name}") for i, kind in enumerate(kinds)]
    )


def read(kind: Kind, arrays: Arrays) -> Payload:
    return kind.spec.decode(arrays)


def refused(kind: Kind, arrays: Arrays, said: str) -> None:
    """Read what is to be refused, in a sentence that the server can print."""
    with pytest.raises(PayloadError, match=said) as error:
        read(kind, arrays)
    assert len(str(error.value)) <= REASON_LENGTH
    assert str(error.value).isprintable()


def head(arrays: Arrays, at: int = 0) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(arrays[at].tobytes())
    return fields


def leaves(arrays: Arrays, at: int = 0, end: int | None = None) -> Iterator[tuple[int, range]]:
    """Yield where the header of each part stands that is no bundle, and where its arrays do."""
    end, first = len(arrays) if end is None else end, at + 1
    parts = head(arrays, at).get("parts")
    if parts is None:
        yield at, range(first, end)
    for _, count in parts or ():
        yield from leaves(arrays, first, first + count)
        first += count


def body(arrays: Arrays) -> list[int]:
    return [at for _, places in leaves(arrays) for at in places]


def instead(arrays: Arrays, at: int, array: Numbers) -> Arrays:
    return [*arrays[:at], array, *arrays[at + 1 :]]


def as_bytes(content: bytes) -> Numbers:
    return np.frombuffer(content, np.uint8)


# ---- what is whole ------------------------------------------------------------------------------------


@named(KINDS)
def test_it_arrives_as_it_left_and_takes_no_more_than_was_said(kind: Kind) -> None:
    sent = kind.payload.encode()
    got = read(kind, sent)
    assert not faults(got, kind.spec)
    assert sum(len(npy.write(array)) for array in sent) <= kind.spec.max_bytes
    if kind.name not in ROUNDED:
        plain = [array.tobytes() for array in kind.payload.encode()]
        assert [array.tobytes() for array in got.encode()] == plain
        assert got.floats == kind.payload.floats


# ---- what does not leave ------------------------------------------------------------------------------


def numbers_of(payload: Any) -> Iterator[torch.Tensor]:
    """Yield a payload's floating tensors that hold something, but for weights, which the receiver looks at."""
    if isinstance(payload, Bundle):
        for part in payload.parts.values():
            yield from () if isinstance(part, Weights) else numbers_of(part)
        return
    own = {"labels": None} if isinstance(payload, SyntheticImages) else {}
    own = {**vars(payload), **own, "tensors": None}
    for found in (*own.values(), *vars(payload).get("tensors", {}).values()):
        if isinstance(found, torch.Tensor) and found.is_floating_point() and found.numel():
            yield found


UNSEEN = (Weights, Int8Update)
WITH_NUMBERS = [
    kind
    for kind in KINDS
    if not isinstance(kind.payload, UNSEEN) and any(True for _ in numbers_of(kind.payload))
]


@named(WITH_NUMBERS)
def test_what_is_not_finite_does_not_leave(kind: Kind) -> None:
    for i in range(len(list(numbers_of(kind.payload)))):
        spoilt = deepcopy(kind.payload)
        list(numbers_of(spoilt))[i].view(-1)[0] = math.nan
        with pytest.raises(PayloadError, match=r"holds 1 of \d+ values that are not finite"):
            spoilt.encode()


@named([kind for kind in KINDS if " float16" in kind.name and kind.payload.floats])
def test_what_float16_does_not_hold_does_not_leave(kind: Kind) -> None:
    spoilt: Any = deepcopy(kind.payload)
    weights = getattr(spoilt, "parts", {"weights": spoilt}).get("weights")
    numbers = weights.tensors.values() if isinstance(weights, Weights) else numbers_of(spoilt)
    next(iter(numbers)).view(-1)[0] = 1e5
    with pytest.raises(PayloadError, match="65504"):
        spoilt.encode()


# ---- what is not as agreed ----------------------------------------------------------------------------


def other_type(array: Numbers) -> Numbers:
    return array.astype(np.float32 if array.dtype.kind != "f" else np.complex64)


def other_precision(array: Numbers) -> Numbers | None:
    if array.dtype.kind != "f":
        return None
    return array.astype(np.float32 if array.dtype == np.float64 else np.float64)


def other_order(array: Numbers) -> Numbers | None:
    return array.astype(array.dtype.newbyteorder(">")) if array.dtype.itemsize > 1 else None


def flat(array: Numbers) -> Numbers | None:
    return array.reshape(-1) if array.ndim != 1 else None


def doubled(array: Numbers) -> Numbers | None:
    return np.concatenate([array, array]) if array.ndim and len(array) else None


def fewer(array: Numbers) -> Numbers | None:
    return array[:-1] if array.ndim and len(array) else None


def filled(value: float) -> Callable[[Numbers], Numbers | None]:
    def change(array: Numbers) -> Numbers | None:
        return np.full_like(array, value) if array.dtype.kind == "f" and array.size else None

    return change


EXPECTED = "where .* (expected|allowed)"
CHANGES: dict[str, tuple[Callable[[Numbers], Numbers | None], str]] = {
    "other type": (other_type, EXPECTED),
    "other precision": (other_precision, EXPECTED),
    "other order": (other_order, EXPECTED),
    "one dimension more": (lambda array: array[None], f"{EXPECTED}|no JPEG|shares"),
    "one dimension": (flat, EXPECTED),
    "doubled": (doubled, f"{EXPECTED}|bytes follow|twice"),
    "one fewer": (fewer, f"{EXPECTED}|cut short"),
    "NaN": (filled(math.nan), "not finite"),
    "infinite": (filled(-math.inf), "not finite"),
}


@pytest.mark.parametrize("change", CHANGES)
@named(KINDS)
def test_an_array_that_is_another_is_refused(kind: Kind, change: str) -> None:
    arrays = kind.payload.encode()
    how, said = CHANGES[change]
    for at in body(arrays):
        other = how(arrays[at])
        if other is None or (change == "one fewer" and kind.payload.kind == "class-list"):
            continue  # a list of classes may be shorter
        refused(kind, instead(arrays, at, other), said)


@named(KINDS)
def test_arrays_that_are_more_or_fewer_are_refused(kind: Kind) -> None:
    arrays = kind.payload.encode()
    said = f"{EXPECTED}|empty|no header|is not JSON|speaks of"
    for wrong in ([*arrays, np.zeros(3)], arrays[:-1], arrays[1:], []):
        refused(kind, wrong, said)


HEADERS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "release": (lambda fields: {**fields, "version": 99}, "has version 99"),
    "kind": (lambda fields: {**fields, "kind": "x" * 900}, "where a '.*' was expected"),
    "codec": (lambda fields: {**fields, "codec": "x"}, "codec 'x', allowed are"),
    "codec's type": (lambda fields: {**fields, "codec": ["float32"]}, "codec .*, allowed are"),
    "names": (lambda fields: {**fields, "names": ["a"]}, "was expected"),
    "seed": (lambda fields: {**fields, "seed": 10**400}, "63 bits"),
    "range": (lambda fields: {**fields, "range": [[0], [10**400]]}, "range of"),
    "range's end": (lambda fields: {**fields, "range": [[0] * 2, [1, math.inf]]}, "range of"),
    "range's type": (lambda fields: {**fields, "range": "no"}, "range of"),
    "no object": (lambda fields: [fields], "was expected"),
}
ALWAYS = ("release", "kind", "no object")
TEXTS = (b"", b"{", b"[" * 60_000, b"9" * 5000, b"\xff", b"x" * 70_000)


@named(KINDS)
def test_a_header_that_says_something_else_is_refused(kind: Kind) -> None:
    arrays = kind.payload.encode()
    for at in {0, *(at for at, _ in leaves(arrays))}:
        fields = head(arrays, at)
        for what, (change, said) in HEADERS.items():
            if what in ALWAYS or what.partition("'")[0] in fields:
                text = json.dumps(change(fields)).encode()
                refused(kind, instead(arrays, at, as_bytes(text)), said)
        for text in TEXTS:
            refused(kind, instead(arrays, at, as_bytes(text)), "is not JSON|no header")
