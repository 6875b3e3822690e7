"""Payloads of every kind, damaged at random: each is refused with a PayloadError, or is what its spec says.

The oracle is written a second time, from what the specs promise, and asks nothing of the code that it judges. A
payload is damaged as arrays, as the records of a reply, or as the objects in which a reply lies at a SuperLink, and it
is read as a server reads it: from the in-process grid, through Flower's own deflating and inflating, by the inbox. What
was not damaged has to be accepted. Payloads are of each kind in every form, and whatever every method's sites send and
are sent (`travelling`); an evaluation alone or riding on a reply, what is told of privacy, and a roll call's answer are
damaged beside them. The suite does some of it; all of it is

    python tests/helpers/fuzzing.py --payloads 100000 --seed 0

A case is drawn from the seed and its own number, so that ``--first N --payloads 1`` does one again.
"""

from __future__ import annotations

import io
import json
import math
import sys
import time
import traceback
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

sys.path.insert(0, str(Path(__file__).parents[2]))

from fuzzing_rounds import CASES, command
from inflating import Edit, content, deflated, inflated, npz, of_kind, parts
from spoiling import pick
from tampering import Arrays
from travelling import travelling

from common.code.fingerprint import source_fingerprint
from common.errors import REASON_LENGTH, FederationError, PayloadError
from common.models import build
from common.privacy.ledger import LEDGER_TIP, RECORD
from common.sites import RAY, Site, is_site_name
from common.specs.fedsynth import SyntheticBatches, SyntheticBatchesSpec
from common.specs.updates import EVALUATION, REASON, TRAINING_FAILED
from common.wire.bundle import Bundle, BundleSpec
from common.wire.form import Payload, Spec, TensorSpec
from common.wire.images import Pixels, PixelsSpec, SyntheticImages, SyntheticImagesSpec
from common.wire.int8_update import Int8Update, Int8UpdateSpec
from common.wire.sparse import MaskedUpdate, MaskedUpdateSpec, TopKUpdate, TopKUpdateSpec
from common.wire.tensors import (
    CLASS_LIST,
    LABELS,
    Tensors,
    TensorsSpec,
    class_list,
    class_list_spec,
    latent_means,
    latent_means_spec,
)
from common.wire.weights import Weights, WeightsSpec
from nectar.engines.local_grid import LocalGrid
from server_app.recorder import spending_lines
from strategies.base import Strategy
from strategies.exchange.evaluation import EvaluationRequest
from strategies.exchange.exchange import exchange
from strategies.exchange.membership import Question, read_answer
from strategies.exchange.replies import (
    PrivacyBudgetUsage,
    SiteEvaluation,
    privacy_report_in,
    read_evaluation,
    read_upload,
    require_names,
    require_records,
)

Draw = np.random.Generator

EXAMPLES = 7

#: bytes that reading may take beside a few copies of what was sent and of what may be
ROOM = 6 * 2**20

#: seconds of its processor that computing one site's epsilon may take
RECKONED = 5.0

#: the memory of one case in as many is measured, which takes longer than to read it
MEASURED = 8

# ---- what is sent when nobody damages it --------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A payload as a device sends it, and what the server expects."""

    name: str
    payload: Payload
    spec: Spec


_NUMBER = TensorSpec((), 1, 9, torch.int64)
_TENSORS = {
    "means": TensorSpec((5, 3), -math.inf, math.inf),
    "shares": TensorSpec((5,), 0, 0.1, torch.float16),
    "held": TensorSpec((5,), 0, 1, torch.bool),
    "levels": TensorSpec((2, 0, 3), 0, 255, torch.uint8),
    "size": _NUMBER,
    "points": TensorSpec((4, 2), -1, 1, varies=True),
    "flags": TensorSpec((4,), 0, 1, torch.bool, varies=True),
}


LATENTS = latent_means_spec(6, 5, each=3, kinds=2)


def _tensors() -> dict[str, torch.Tensor]:
    return {
        "means": torch.randn(5, 3),
        "shares": torch.full((5,), 0.1, dtype=torch.float16),
        "held": torch.tensor([True, False, True, True, False]),
        "levels": torch.zeros(2, 0, 3, dtype=torch.uint8),
        "size": torch.tensor(9),
        "points": torch.full((3, 2), 0.5),
        "flags": torch.tensor([True, False, True]),
    }


def _kinds() -> list[Kind]:
    torch.manual_seed(0)
    model = build("convnet", (1, 8, 8), 10, depth=1, width=4)
    spec = WeightsSpec.of(model)
    flat = torch.randn(200)
    masked, top = MaskedUpdateSpec(200, 4.0), TopKUpdateSpec(200, 20)
    images = SyntheticImagesSpec((1, 4, 4), 5, 3)
    soft = SyntheticImagesSpec((1, 4, 4), 5, 3, soft=True)
    fixed = SyntheticBatchesSpec(2, 3, (1, 4, 4), (), 5, False, False, 10.0)
    trained = SyntheticBatchesSpec(2, 3, (1, 4, 4), (), 5, True, True, 10.0)
    text = SyntheticBatchesSpec(2, 3, (6, 4), (6,), 5, False, False, 10.0)
    counted = WeightsSpec(
        ("w", "count", "scalar"), ((3, 2), (), ()), (torch.float64, torch.int64, torch.float32)
    )
    counts = {
        "w": torch.randn(3, 2, dtype=torch.float64),
        "count": torch.tensor(5),
        "scalar": torch.tensor(0.5),
    }
    made: list[tuple[str, Payload, Spec]] = [
        ("of three", class_list((4, 0, 2)), class_list_spec(5, 4)),
        ("of none", class_list(()), class_list_spec(5, 4)),
        ("of one", Tensors({"size": torch.tensor(5)}), TensorsSpec({"size": _NUMBER})),
        ("of many", Tensors(_tensors()), TensorsSpec(_TENSORS)),
        ("of none", Tensors({}), TensorsSpec({})),
    ]
    bytewise = PixelsSpec((1, 4, 4), 5, 9, (0.5,), (0.25,))
    pixels = Pixels(
        torch.randint(256, (9, 1, 4, 4), dtype=torch.uint8), torch.arange(9) % 5, (0.5,), (0.25,)
    )
    inner = BundleSpec({"inner": BundleSpec({"weights": spec}), "share": bytewise})
    nested = Bundle({"inner": Bundle({"weights": Weights.of(model)}), "share": pixels})
    made += [("of nine", pixels, bytewise), ("in a bundle", nested, inner)]
    latents, pairs = LATENTS, torch.tensor([3, 1, 3, 1])
    for codec in ("float32", "float16"):
        made += [
            (codec, Weights.of(model, codec), spec),
            (codec, Weights(counts, codec), counted),
            (codec, MaskedUpdate.of(flat, masked, 12345, codec), masked),
            (codec, TopKUpdate.of(flat, top, codec), top),
            (codec, latent_means(torch.randn(4, 6), pairs, codec), latents),
            (f"{codec} of none", latent_means(torch.empty(0, 6), pairs[:0], codec), latents),
        ]
    for codec in ("float32", "float16"):
        parts = {"weights": Weights.of(model, codec), "images": SyntheticImages(*_drawn(), codec)}
        both = BundleSpec({"weights": spec, "images": images}, frozenset({"images"}))
        made.append((codec, Bundle(parts), both))
        made.append((f"{codec} without a part", Bundle({"weights": parts["weights"]}), both))
    base = Weights.of(build("convnet", (1, 8, 8), 10, depth=1, width=4, norm="batch"))
    moved = Weights(
        {n: t + 1 if t.dtype == torch.int64 else t * 1.1 for n, t in base.tensors.items()}
    )
    form = WeightsSpec.of(build("convnet", (1, 8, 8), 10, depth=1, width=4, norm="batch"))
    update, _ = Int8Update.of(moved, base, form.trained)
    made.append(("of statistics", update, Int8UpdateSpec(form, base)))
    for codec, channels in (("jpeg:95", 1), ("jpeg:30", 3)):
        at = (0.5,) * channels, (0.25,) * channels
        shown = SyntheticImagesSpec((channels, 4, 5), 5, 3, mean=at[0], std=at[1])
        drawn = torch.randn(9, channels, 4, 5)
        bytes_ = (drawn * 64 + 128).clamp(0, 255).byte()
        labels = torch.arange(9) % 5
        made += [
            (codec, SyntheticImages(drawn, labels, codec, *at), shown),
            (
                codec,
                SyntheticImages(drawn, torch.rand(9, 5).softmax(1), codec, *at),
                replace(shown, soft=True),
            ),
            (
                codec,
                Pixels(bytes_, labels, *at, codec),
                PixelsSpec((channels, 4, 5), 5, 9, *at, True),
            ),
        ]
    for codec in ("float32", "float16", "uint8"):
        drawn, labels = torch.randn(9, 1, 4, 4), torch.arange(9) % 5
        inputs, classes = torch.randn(2, 3, 1, 4, 4), torch.arange(6).view(2, 3) % 5
        step = torch.tensor(0.1)
        made += [
            (codec, SyntheticImages(drawn, labels, codec), images),
            (codec, SyntheticImages(drawn, torch.rand(9, 5).softmax(1), codec), soft),
            (codec, SyntheticBatches(inputs, classes, None, codec), fixed),
            (codec, SyntheticBatches(inputs, torch.randn(2, 3, 5), step, codec), trained),
            (
                codec,
                SyntheticBatches(torch.randn(2, 3, 6, 4), torch.randint(5, (2, 3, 6)), None, codec),
                text,
            ),
        ]
    return [Kind(f"{payload.kind} {codec}", payload, expects) for codec, payload, expects in made]


def _drawn() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(9, 1, 4, 4), torch.arange(9) % 5


KINDS = _kinds()
"""Of each kind of payload, every codec and form that there is."""


def kinds_of_methods(cases: Sequence[tuple[str, str]] = CASES) -> list[Kind]:
    """Return what the sites of every method send and are sent, in bundles with all their parts."""
    return [Kind(name, payload, spec) for name, payload, spec in travelling(cases)]


# ---- the oracle ---------------------------------------------------------------------------------------


def faults(payload: Payload, spec: Any) -> list[str]:
    """Return what is wrong with an accepted payload, by the promises of its spec."""
    found = []

    def need(condition: bool, what: str) -> None:
        if not condition:
            found.append(what)

    def finite(tensor: torch.Tensor, what: str) -> None:
        need(bool(np.isfinite(tensor.double().numpy()).all()), f"{what} is not finite")

    def within(labels: torch.Tensor, classes: int) -> None:
        numbers = labels.numpy()
        need(labels.dtype == torch.int64, "labels of another type")
        need(bool(((numbers >= 0) & (numbers < classes)).all()), "a label out of range")

    match payload, spec:
        case Weights(), WeightsSpec():
            need(tuple(payload.tensors) == spec.names, "other names")
            for name, shape, dtype in zip(spec.names, spec.shapes, spec.dtypes, strict=True):
                tensor = payload.tensors[name]
                need(tuple(tensor.shape) == shape and tensor.dtype == dtype, f"{name} is another")
                finite(tensor, name)
        case Weights(), Int8UpdateSpec():
            found += faults(payload, spec.weights)
        case MaskedUpdate(), MaskedUpdateSpec():
            need(payload.values.ndim == 1, "values of more dimensions")
            need(payload.values.dtype == torch.float32, "values of another type")
            need(len(payload.values) <= spec.total, "more values than there are")
            finite(payload.values, "a value")
            need(0 <= payload.seed < 2**63, "a seed out of range")
        case TopKUpdate(), TopKUpdateSpec():
            places = payload.indices.numpy()
            need(payload.values.shape == (spec.k,) == places.shape, "other than k values")
            need(bool((np.diff(places) > 0).all()), "places that do not ascend")
            need(bool(((places >= 0) & (places < spec.total)).all()), "a place out of range")
            finite(payload.values, "a value")
        case Pixels(), PixelsSpec():
            need(1 <= len(payload.values) <= spec.most, "too many images")
            need(tuple(payload.values.shape[1:]) == spec.shape, "images of another shape")
            need(payload.values.dtype == torch.uint8, "images of another type")
            need(payload.labels.shape == (len(payload.values),), "labels of another shape")
            within(payload.labels, spec.classes)
        case Tensors(), TensorsSpec():
            need(list(payload.tensors) == list(spec.tensors), "other names")
            rows = {len(payload[name]) for name, form in spec.tensors.items() if form.varies}
            need(len(rows) < 2, "more rows of one than of another")
            for name, form in spec.tensors.items():
                tensor = payload[name]
                shape = form.shape
                if form.varies:
                    need(len(tensor) <= shape[0], "too many rows")
                    shape = (len(tensor), *shape[1:])
                need((tuple(tensor.shape), tensor.dtype) == (shape, form.dtype), "another one")
                finite(tensor, name)
                numbers = tensor.double().numpy()
                inside = (numbers >= form.least - 1e-6) & (numbers <= form.most + 1e-6)
                need(bool(inside.all()), f"{name} out of its bounds")
            if payload.kind == "class-list":
                classes = payload[CLASS_LIST].tolist()
                need(len(set(classes)) == len(classes), "a class twice")
            if spec is LATENTS:
                counts = Counter(payload[LABELS].tolist())
                need(len(counts) <= 2, "too many classes")
                need(max(counts.values(), default=0) <= 3, "too many of one class")
        case SyntheticImages(), SyntheticImagesSpec():
            n = len(payload.images)
            need(1 <= n <= spec.ipc * spec.classes, "too many images")
            need(tuple(payload.images.shape[1:]) == spec.shape, "images of another shape")
            need(payload.images.dtype == torch.float32, "images of another type")
            finite(payload.images, "an image")
            if spec.soft:
                need(tuple(payload.labels.shape) == (n, spec.classes), "labels of another shape")
                finite(payload.labels, "a label")
                shares = payload.labels.double().numpy()
                need(bool((shares >= 0).all()), "a share below 0")
                need(bool((abs(shares.sum(1) - 1) < 0.01).all()), "shares that are not the whole")
                of_one = Counter(shares.argmax(1).tolist())
                need(min(of_one.values()) >= spec.fewest, "too few of one class")
            else:
                need(tuple(payload.labels.shape) == (n,), "labels of another shape")
                within(payload.labels, spec.classes)
                counts = Counter(payload.labels.tolist())
                need(max(counts.values(), default=0) <= spec.ipc, "too many of one class")
                need(min(counts.values(), default=0) >= spec.fewest, "too few of one class")
        case SyntheticBatches(), SyntheticBatchesSpec():
            need(tuple(payload.inputs.shape) == (spec.m, spec.b, *spec.shape), "another shape")
            finite(payload.inputs, "an input")
            targets = (spec.m, spec.b, *spec.targets)
            if spec.trained:
                need(tuple(payload.labels.shape) == (*targets, spec.classes), "other logits")
                finite(payload.labels, "a logit")
            else:
                need(tuple(payload.labels.shape) == targets, "labels of another shape")
                within(payload.labels, spec.classes)
            step = payload.step_size
            need((step is not None) == spec.learned_step, "a step size where none is, or none")
            need(step is None or 0 < float(step) <= spec.max_step * (1 + 1e-6), "an odd step size")
        case Bundle(), BundleSpec():
            names = [n for n in spec.parts if n in payload.parts or n not in spec.optional]
            need(list(payload.parts) == names, "other parts")
            for name in payload.parts:
                found += faults(payload.parts[name], spec.parts[name])
        case _:
            found.append(f"a {type(payload).__name__} for a {type(spec).__name__}")
    return found


def faulty_figures(figures: Mapping[str, float], examples: int) -> list[str]:
    """Return what is wrong with the figures of an accepted reply."""
    found = [] if examples == EXAMPLES else ["another count than the roll call's"]
    if len(figures) > 48 or any(len(key) > 64 or not key.isprintable() for key in figures):
        found.append("figures that are many or long")
    if not all(isinstance(v, float) and np.isfinite(v) for v in figures.values()):
        found.append("a figure that is no finite number")
    return found


def faulty_spending(spending: PrivacyBudgetUsage) -> list[str]:
    """Return what is wrong with what is kept of an accepted reply's privacy: it is computed, and written as JSON."""
    found, begun = [], time.process_time()
    for line in spending_lines(spending, 1e-5).values():
        if line["epsilon"] is not None and not 0 <= line["epsilon"] < float("inf"):
            found.append("an epsilon that is not a number")
        if len(line["events"]) > 64 or any(e["steps"] > 64 * 10**9 for e in line["events"]):
            found.append("more events, or more steps, than a run has")
    text = json.dumps([spending_lines(spending, 1e-5), spending.state()], allow_nan=False)
    if len(text) > 64 * 1024:
        found.append(f"{len(text)} characters of it")
    if time.process_time() - begun > RECKONED:
        found.append(f"an epsilon that takes {time.process_time() - begun:.1f} s to compute")
    return found


# ---- damage to arrays ---------------------------------------------------------------------------------

_BOMB = np.zeros(2**20, np.uint8)
_ODD: list[Any] = [
    *(None, True, False, -1, 0, 1, 2**31, 2**63, 2**64, 10**400, -0.5, 1e308, float("nan")),
    *("", "x", "float16", "none", "\x1b[2J\n", "y" * 50_000, [], {}, [[]], [None] * 9),
    *([[0, 0, 0], [1, 1, 1]], [[1e308], [-1e308]], {"a": {"b": {}}}, [[[[[[1]]]]]]),
]
_DTYPES = (
    *("float16", "float32", "float64", ">f4", "longdouble", "complex64", "bool", "S3", "U2"),
    *("int8", "int16", "int64", "uint8", "uint16", "uint32", "uint64", ">i8", "datetime64[s]"),
)
_VALUES = (np.nan, np.inf, -np.inf, 1e38, -1e38, 1e-40, 65504.0, -1.0, 255.0, 2.0**31, 2.0**62)


def _flipped(draw: Draw, data: bytes) -> bytes:
    """Return ``data`` with some bits flipped, cut short, doubled, or with other bytes in it."""
    changed = bytearray(data)
    match int(draw.integers(5)):
        case 0 if changed:
            for _ in range(int(draw.integers(1, 9))):
                changed[int(draw.integers(len(changed)))] ^= 1 << int(draw.integers(8))
        case 1:
            del changed[int(draw.integers(len(changed) + 1)) :]
        case 2:
            changed = changed + changed
        case 3:
            at = int(draw.integers(len(changed) + 1))
            changed[at : at + int(draw.integers(1, 20))] = draw.bytes(int(draw.integers(1, 20)))
        case _:
            changed = bytearray(draw.bytes(int(draw.integers(200))))
    return bytes(changed)


def _other_values(draw: Draw, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    changed = array.copy().reshape(-1)
    if changed.size:
        where = draw.integers(changed.size, size=int(draw.integers(1, 4)))
        with np.errstate(all="ignore"):
            changed[where] = np.array(pick(draw, _VALUES)).astype(array.dtype)
    return changed.reshape(array.shape)


def _other_shape(draw: Draw, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    match int(draw.integers(7)):
        case 0:
            return array[None]
        case 1:
            return array.reshape(-1)
        case 2:
            return array.T
        case 3:
            return array[:0] if array.ndim else array[None][:0]
        case 4:
            return array[:-1] if array.ndim else array[None]
        case 5:
            return np.concatenate([array, array]) if array.ndim else array[None]
        case _:
            return np.tile(array, int(draw.integers(2, 40)))


def _other_dtype(draw: Draw, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    other = pick(draw, _DTYPES)
    with np.errstate(all="ignore"):
        try:
            return array.astype(other)
        except ValueError:  # text that is no number: it was damaged before
            return np.zeros(array.shape, other)


def _other_bytes(draw: Draw, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    data = bytearray(array.tobytes())
    if not data:
        return array
    data[int(draw.integers(len(data)))] ^= 1 << int(draw.integers(8))
    return np.frombuffer(bytes(data), array.dtype).reshape(array.shape)


def _is_header(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype == np.uint8 and array.ndim == 1 and array[:2].tobytes() == b'{"'


def _other_header(draw: Draw, head: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    text = head.tobytes()
    choice = int(draw.integers(8))
    if choice == 0:
        return np.frombuffer(_flipped(draw, text), np.uint8)
    if choice == 1:
        return np.frombuffer(b"[" * int(draw.integers(1, 60_000)), np.uint8)
    try:
        fields = json.loads(text)
        key = pick(draw, list(fields))
        if choice == 2:
            del fields[key]
        elif choice <= 5 and isinstance(fields.get("parts"), list) and fields["parts"]:
            fields["parts"][int(draw.integers(len(fields["parts"])))] = _part(draw, fields["parts"])
        else:
            fields[key] = pick(draw, _ODD)
        return np.frombuffer(json.dumps(fields).encode(), np.uint8)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return np.frombuffer(_flipped(draw, text), np.uint8)


def _part(draw: Draw, parts: list[Any]) -> Any:
    """Return another entry of a bundle's header."""
    known = pick(draw, parts)
    name = known[0] if isinstance(known, list) and known else "weights"
    counts = [0, 1, 2, -1, 10**9, 10**30, 1.5, "1", None, float("inf"), True, [1]]
    return pick(draw, [[name, pick(draw, counts)], ["other", 1], known, *_ODD])


def damaged(draw: Draw, arrays: Arrays) -> Arrays:
    """Return a payload's arrays with one thing wrong, or sometimes nothing."""
    changed = list(arrays)
    i = int(draw.integers(len(changed))) if changed else 0
    choice = int(draw.integers(12))
    if not changed or choice == 0:
        return [*changed, np.zeros(int(draw.integers(5)), pick(draw, _DTYPES[:3]))]
    if choice == 1:
        del changed[i]
    elif choice == 2:
        changed.insert(i, pick(draw, changed))
    elif choice == 3:
        changed.reverse()
    elif choice == 4:
        changed[i] = _BOMB
    elif choice <= 7:
        heads = [j for j, array in enumerate(changed) if _is_header(array)] or [0]
        at = pick(draw, heads)
        changed[at] = _other_header(draw, changed[at])
    else:
        change = (_other_values, _other_shape, _other_dtype, _other_bytes)[choice - 8]
        changed[i] = change(draw, changed[i])
    return changed


# ---- damage to records --------------------------------------------------------------------------------


def _npy(draw: Draw, data: bytes) -> bytes:
    """Return other bytes in the place of an array as NumPy saves it."""
    shapes = ["()", "(3,)", f"({10**12},)", f"({'9' * 18}, {'9' * 18})", "(-1,)", "(1, " * 30 + ")"]
    types = ["'<f4'", "'|O'", "'<U9'", "[('a', '<f4')]", "'<f3'", "'>f8'", "__import__('os')"]
    match int(draw.integers(7)):
        case 0:
            return npz()
        case 1:
            buffer = io.BytesIO()
            np.save(buffer, np.array([{}, None]), allow_pickle=True)
            return buffer.getvalue()
        case 2:
            return b"\x80\x04N."
        case 3 | 4:
            head = f"{{'descr': {pick(draw, types)}, 'fortran_order': {pick(draw, [True, False])}, "
            text = f"{head}'shape': {pick(draw, shapes)}, }}\n".encode()
            return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data[-40:]
        case 5:
            return data[:8] + _flipped(draw, data[8:200]) + data[200:]
        case _:
            return _flipped(draw, data)


def _other_array(draw: Draw, array: Array) -> Array:
    described = {
        "dtype": array.dtype,
        "shape": array.shape,
        "stype": array.stype,
        "data": array.data,
    }
    odd: dict[str, Any] = {
        "dtype": pick(draw, _DTYPES),
        "shape": (2**62,) * 3,
        "stype": pick(draw, ["", "pickle", "numpy.ndarray"]),
        "data": _npy(draw, array.data),
    }
    key = "data" if draw.random() < 0.7 else pick(draw, list(described))
    return Array(**{**described, key: odd[key]})


def _other_arrays(draw: Draw, record: ArrayRecord) -> ArrayRecord:
    items = dict(record)
    if not items or draw.random() < 0.05:
        return ArrayRecord()
    name = pick(draw, list(items))
    if draw.random() < 0.1:
        return ArrayRecord({f"{name}-{i}": items[name] for i in range(300)})
    return ArrayRecord({**items, name: _other_array(draw, items[name])})


def _other_figures(draw: Draw, record: MetricRecord) -> MetricRecord:
    odd: list[Any] = [
        *(0, -1, 1e300, -1e300, float("nan"), float("inf"), 2**63, 2**64 - 1, 10**9, 7.5, EXAMPLES),
        *([], [1.0] * 500, [1, 2, 3], [float("nan")]),
    ]
    names = [*record, "num-examples", "", "x" * 70, "\x1b[31m", "a\nb", "né", "loss", "x" * 300_000]
    changed = {**record, pick(draw, names): pick(draw, odd)}
    if draw.random() < 0.2:
        changed |= {f"f{i}": 1.0 for i in range(int(draw.integers(100)))}
    if changed and draw.random() < 0.1:
        del changed[pick(draw, list(changed))]
    return MetricRecord(changed)


def _privacy(draw: Draw) -> ConfigRecord:
    """Return what a site may say of its privacy, right or odd."""
    event: dict[str, Any] = {
        **{"mechanism": "dp-sgd", "noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 3},
        "adjacency": "add-remove",
    }
    fields: dict[str, Any] = {"whole": bool(draw.random() < 0.5), "seeded": False}
    for _ in range(int(draw.integers(3))):
        numbers = [
            0,
            -1,
            1e-300,
            1e-5,
            0.5,
            1.0,
            1e300,
            10**9,
            10**18,
            10**400,
            None,
            "1",
            True,
            [],
        ]
        texts = ["", "x" * 500, "\x1b[2J", "replace-one", "add-remove", float("inf"), float("nan")]
        event[pick(draw, [*event, "more"])] = pick(draw, [*numbers, *texts])
    if draw.random() < 0.3:
        head = pick(draw, ["x", "[" * 50_000, "{}", '{"length": 1e400, "sha256": "x"}', [1]])
        fields[pick(draw, [LEDGER_TIP, "whole", "seeded", "events", "more"])] = head
    events = json.dumps([event] * pick(draw, [0, 1, 1, 2, 64, 65, 1000]))
    return ConfigRecord({"events": events, **fields})


def other_records(draw: Draw, records: RecordDict) -> RecordDict:
    """Return a reply's records with one thing wrong, or sometimes nothing."""
    changed: dict[str, Any] = dict(records)
    match int(draw.integers(10)):
        case 0:
            names = ["more", "arrays", "metrics", "about", RECORD, EVALUATION, TRAINING_FAILED, ""]
            changed[pick(draw, names)] = pick(
                draw,
                [
                    ArrayRecord(),
                    MetricRecord({"a": 1}),
                    ConfigRecord({"s": "", "l": [], "b": b"x"}),
                    ConfigRecord(
                        {REASON: pick(draw, ["", "x" * 2000, "\x1b[2J\n", [1], b"x", 1.5])}
                    ),
                    ConfigRecord({"s": "x" * 300_000}),
                    ConfigRecord({f"k{i}": [float("nan")] * 1000 for i in range(40)}),
                ],
            )
        case 8:
            changed[RECORD] = _privacy(draw)
        case 9:
            changed |= {f"more-{i}": ConfigRecord() for i in range(int(draw.integers(1, 12)))}
        case 1 if changed:
            del changed[pick(draw, list(changed))]
        case 2 | 3 if "metrics" in changed and isinstance(changed["metrics"], MetricRecord):
            changed["metrics"] = _other_figures(draw, changed["metrics"])
        case _ if isinstance(changed.get("arrays"), ArrayRecord):
            changed["arrays"] = _other_arrays(draw, changed["arrays"])
    return RecordDict(changed)


# ---- damage to objects --------------------------------------------------------------------------------

_OBJECTS = ("Message", "RecordDict", "ArrayRecord", "MetricRecord", "Array", "ArrayChunk")


def other_objects(draw: Draw, objects: dict[str, bytes]) -> None:
    """Change a stored reply's objects in place."""
    found = of_kind(objects, pick(draw, _OBJECTS))
    if not found:
        return
    name = pick(draw, found)
    try:
        kind, children, body = parts(objects[name])
    except ValueError:  # it has been damaged already
        objects[name] = _flipped(draw, objects[name])
        return
    choice = int(draw.integers(10))
    if choice == 0:
        del objects[name]
    elif choice == 1:
        objects[name] = _flipped(draw, objects[name])
    elif choice == 2:
        objects[name] = objects[pick(draw, list(objects))]
    elif choice == 3:
        objects[name] = content(
            pick(draw, [*_OBJECTS, "ConfigRecord", "CustomDataClass", ""]), body, children
        )
    elif choice == 4:
        more = [*children, *children[:1], pick(draw, list(objects))]
        objects[name] = content(kind, body, more if draw.random() < 0.5 else children[1:])
    elif choice == 5:
        objects[name] = content(kind, pick(draw, [b"[" * 100_000, b"{}", b"[]", b"null", b"1"]))
    elif choice == 6 and kind == "Array":
        objects[name] = content(kind, _numbered(draw, body), children)
    elif choice == 7 and kind == "ArrayChunk":
        objects[name] = content(kind, _npy(draw, body))
    else:
        objects[name] = content(kind, _flipped(draw, body), children)


def _numbered(draw: Draw, body: bytes) -> bytes:
    try:
        described = json.loads(body)
        described["arraychunk_ids"] = pick(
            draw,
            [[0] * 200_000, [0] * int(draw.integers(9)), [-1], [9], ["0"], [True], None, {}, [1.0]],
        )
        return json.dumps(described).encode()
    except (ValueError, TypeError, RecursionError):
        return body


# ---- how a case is read -------------------------------------------------------------------------------

_nobody = ClientApp()


class FuzzGrid(LocalGrid):
    """One node, whose next reply is set from outside; it passes as objects where ``edit`` is set."""

    def __init__(self) -> None:
        super().__init__(_nobody, 1)
        self.records = RecordDict()
        self.edit: Edit | None = None

    def _call(self, message: Message) -> Message:
        return Message(self.records, reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Hand out the reply, as objects that are put together where they are to be."""
        replies = super().pull_messages(message_ids)
        if self.edit is None:
            return replies
        carried = []
        for reply in replies:
            message_id, objects = deflated(reply)
            self.edit(objects)
            carried.append(inflated(message_id, objects))
        return carried


@dataclass
class Tally:
    """What became of the cases."""

    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    last_resort: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    largest: int = 0

    def lines(self) -> list[str]:
        """Return the tally as text."""
        ways = sorted(self.accepted.keys() | self.refused.keys())
        rows = [
            f"{way}: {self.accepted[way]} accepted, {self.refused[way]} refused" for way in ways
        ]
        rest = ", ".join(f"{why} {n}" for why, n in self.last_resort.most_common())
        return [
            *rows,
            f"not foreseen by a check of its own, and refused: {rest or 'none'}",
            f"most memory of a case of those measured: {self.largest / 2**20:.1f} MiB",
            f"failures: {len(self.failures)}",
            *self.failures[:20],
        ]


#: how a case comes, as often as it stands here
_COMES = (
    *("arrays", "arrays", "arrays", "records", "records", "records", "objects", "objects"),
    *("objects", "evaluation", "riding", "roll_call"),
)


class Fuzzer:
    """Draws cases, has them read, and judges what comes of it.

    Parameters
    ----------
    seed : int
        Of all draws.
    kinds : sequence of Kind
        What is damaged.
    """

    def __init__(self, seed: int, kinds: Sequence[Kind] = KINDS) -> None:
        self.seed, self._kinds = seed, kinds
        self.tally = Tally()
        self._grid = FuzzGrid()
        self._site = Site("site", self._grid.get_node_ids()[0], EXAMPLES, 0, 1)
        self._case, self._sent = "", 0

    def case(self, number: int) -> None:
        """Do one case."""
        draw = np.random.default_rng([self.seed, number])
        kind, damages = pick(draw, self._kinds), int(draw.integers(4))
        way = _COMES[number % len(_COMES)]
        self._case = f"case {number} ({kind.name}, {way}, {damages} damages)"
        read: Callable[[], None] = getattr(self, f"_{way}")(draw, kind, damages)
        measured = number // len(_COMES) % MEASURED == 0
        if measured:
            tracemalloc.start()
        try:
            read()
            self.tally.accepted[way] += 1
        except PayloadError as error:
            self.tally.refused[way] += 1
            self._look_at(str(error))
            if not damages:
                self._fail(f"refused although it is whole: {error}")
        except Exception:
            self._fail(traceback.format_exc(limit=-4))
        peak = tracemalloc.get_traced_memory()[1] if measured else 0
        if measured:
            tracemalloc.stop()
        self.tally.largest = max(self.tally.largest, peak)
        if peak > 4 * (kind.spec.max_bytes + self._sent) + ROOM:
            self._fail(f"{peak} bytes of memory for {self._sent} sent")

    def _look_at(self, reason: str) -> None:
        if len(reason) > REASON_LENGTH or not reason.isprintable():
            self._fail(f"a reason of {len(reason)} characters, or of some that cannot be printed")
        if "the reply cannot be read (" in reason or "put together (" in reason:
            self.tally.last_resort[reason.partition("cannot be ")[2]] += 1

    def _fail(self, what: str) -> None:
        self.tally.failures.append(f"{self._case}: {what}")

    # ---- the ways by which it comes: what is to be read is drawn first, and read by the function returned ----

    def _arrays(self, draw: Draw, kind: Kind, damages: int) -> Callable[[], None]:
        arrays = kind.payload.encode()
        for _ in range(damages):
            arrays = damaged(draw, arrays)
        self._sent = sum(a.nbytes for a in arrays)
        return lambda: self._judge(kind, kind.spec.decode(arrays))

    def _records(self, draw: Draw, kind: Kind, damages: int) -> Callable[[], None]:
        arrays = kind.payload.encode()
        if damages == 3:
            arrays = damaged(draw, arrays)
        records = _reply(arrays)
        for _ in range(damages):
            records = other_records(draw, records)
        return lambda: self._read(kind, records)

    def _objects(self, draw: Draw, kind: Kind, damages: int) -> Callable[[], None]:
        records = _reply(kind.payload.encode())
        return lambda: self._read(kind, records, partial(self._edit, draw, damages))

    def _evaluation(self, draw: Draw, kind: Kind, damages: int) -> Callable[[], None]:
        counts = [
            0,
            EXAMPLES - 2,
            5,
            1,
            11,
            1,
        ]  # the first and the last of one class of ten, taken for it
        told = {"accuracy": (EXAMPLES - 1) / EXAMPLES, "auc": 0.5, "counts": counts}
        figures = MetricRecord({"num-examples": EXAMPLES, "loss": 1.0, **told})
        records = RecordDict({"metrics": figures})
        edit = partial(self._edit, draw, damages) if draw.random() < 0.5 else None
        for _ in range(damages if edit is None else 0):
            records = other_records(draw, records)

        return lambda: self._require_evaluation(self._carried(records, 0, edit), "auc")

    def _require_evaluation(self, reply: Message, measure: str = "accuracy") -> None:
        found = read_evaluation(reply, EXAMPLES, 10, measure)
        places, counts = found.counts[::2], found.counts[1::2]
        assert sum(counts) == (EXAMPLES if measure == "auc" else 0)
        assert all(
            0 <= place < 100 and count > 0 for place, count in zip(places, counts, strict=True)
        )
        assert found.auc is None or 0 <= found.auc <= 1
        assert isinstance(found, SiteEvaluation)
        assert 0 <= found.accuracy <= 1
        assert found.examples == EXAMPLES
        assert np.isfinite(found.loss)

    def _riding(self, draw: Draw, kind: Kind, damages: int) -> Callable[[], None]:
        """Read a reply that an evaluation rides on: of its two parts, one may be accepted alone."""
        records = _reply(kind.payload.encode())
        records[EVALUATION] = MetricRecord({"num-examples": EXAMPLES, "accuracy": 0.5, "loss": 1.0})
        for _ in range(damages):
            records = other_records(draw, records)
        weights = ArrayRecord([np.zeros(1)])
        request = EvaluationRequest(1, sites=[self._site], arrays=weights)
        question = request.question_beside(weights, self._site)
        content = RecordDict({"arrays": weights, "config": ConfigRecord(), **question})
        asked = Message(content, self._site.node_id, "train")

        def read() -> None:
            reply = self._carried(records, kind.spec.max_bytes, None)
            trained = request.take_answer(asked, reply)
            (judged,) = request.replies
            _refused_or(lambda: self._require_evaluation(judged))
            self._require_upload(kind, trained)

        return read

    def _roll_call(self, draw: Draw, kind: Kind, damages: int) -> Callable[[], None]:
        """Read what a node says of itself: a site with counts that agree, or a sentence."""
        about = {"site": "site", "source": source_fingerprint(), "partition-id": 0, "engine": RAY}
        sizes = {"num-examples": 7, "num-partitions": 2, "class-counts": [3, 4], "num-held-out": 1}
        told: dict[str, Any] = {"about": ConfigRecord(about), "sizes": MetricRecord(sizes)}
        for _ in range(damages):
            name = pick(draw, ["about", "sizes", "more"])
            fields = dict(told.get(name, {}))
            fields[pick(draw, [*fields, "more"])] = pick(draw, _TOLD[name])
            kept = {k: v for k, v in fields.items() if draw.random() > 0.03}
            told[name] = _RECORDS[name](kept)
        question = Question(2, True, 1000)

        def read() -> None:
            reply = self._carried(RecordDict(told), 0, None)
            try:
                found = read_answer(self._site.node_id, reply, question)
            except FederationError as error:
                raise PayloadError(str(error)) from None
            assert is_site_name(found.name)
            assert 1 <= found.examples == sum(found.class_counts) <= 1000
            assert 0 <= found.held_out <= 1000
            assert not found.partitions or 0 <= found.partition < found.partitions
            assert len(str(found.partitions)) < 400

        return read

    def _edit(self, draw: Draw, damages: int, objects: dict[str, bytes]) -> None:
        try:
            for _ in range(damages):
                other_objects(draw, objects)
        except (
            Exception
        ):  # a mistake of the fuzzer's own, which the inbox would take for the site's
            self._fail(traceback.format_exc(limit=-4))
        self._sent = sum(map(len, objects.values()))

    # ---- reading and judging --------------------------------------------------------------------------

    def _judge(self, kind: Kind, payload: Payload) -> None:
        found = faults(payload, kind.spec)
        assert not found, f"accepted although: {', '.join(found)}"

    def _read(self, kind: Kind, records: RecordDict, edit: Edit | None = None) -> None:
        self._require_upload(kind, self._carried(records, kind.spec.max_bytes, edit))

    def _require_upload(self, kind: Kind, reply: Message) -> None:
        """Read a reply as a strategy does, what it says of its privacy too."""
        require_records(reply)
        require_names(reply, Strategy.records)
        spending, told = PrivacyBudgetUsage(), privacy_report_in(reply)
        if told is not None:
            spending.take(self._site.name, told)
            odd = faulty_spending(spending)
            assert not odd, f"accepted although: {', '.join(odd)}"
        upload = read_upload(reply, self._site, kind.spec)
        self._judge(kind, upload.payload)
        odd = faulty_figures(upload.metrics, upload.examples)
        assert not odd, f"accepted although: {', '.join(odd)}"

    def _carried(self, records: RecordDict, max_bytes: int, edit: Edit | None) -> Message:
        """Return a reply with these records as the server gets it."""
        self._grid.records, self._grid.edit = records, edit
        arrays = {id(a): len(a.data) for r in records.array_records.values() for a in r.values()}
        self._sent = sum(arrays.values())
        instruction = Message(RecordDict(), self._site.node_id, "train")
        (reply,) = exchange(self._grid, [instruction], deadline=60.0, max_bytes=[max_bytes])
        return reply


_NUMBERS: list[Any] = [
    *(
        0,
        -1,
        1,
        8,
        2.5,
        1e300,
        float("nan"),
        float("inf"),
        2**62,
        [],
        [3, 4],
        [7],
        [-1, 8],
        [1e300] * 2,
    ),
    *([float("nan")] * 2, [1] * 5000),
]
_TEXTS: list[Any] = [
    "",
    "x" * 5000,
    "\x1b[2J",
    "../up",
    "a b",
    1.5,
    -2,
    True,
    b"x",
    ["site"],
    2**62,
]
_TOLD = {"about": _TEXTS, "sizes": _NUMBERS, "more": [*_TEXTS]}
_RECORDS: dict[str, Any] = {"about": ConfigRecord, "sizes": MetricRecord, "more": ConfigRecord}


def _refused_or(read: Callable[[], None]) -> None:
    """Let ``read`` be refused."""
    with suppress(PayloadError):
        read()


def _reply(arrays: Arrays) -> RecordDict:
    figures = MetricRecord({"num-examples": EXAMPLES, "train-loss": 0.5, "seconds": 0.1})
    about = ConfigRecord({"site": "site"})
    return RecordDict({"arrays": ArrayRecord(arrays), "metrics": figures, "about": about})


def fuzz(first: int, payloads: int, seed: int, kinds: Sequence[Kind] = KINDS) -> Tally:
    """Do the cases ``first`` to ``first + payloads - 1`` of ``seed``."""
    fuzzer = Fuzzer(seed, kinds)
    for number in range(first, first + payloads):
        fuzzer.case(number)
    return fuzzer.tally


if __name__ == "__main__":
    every = [*KINDS, *kinds_of_methods()]
    sys.exit(command(__doc__, "payloads", 100_000, partial(fuzz, kinds=every)))
