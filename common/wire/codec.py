"""The frame every payload travels in: a JSON header as the first array, then the payload's own arrays.

Nothing is ever unpickled: arrays are NumPy's, the header is JSON, and both are checked against what the receiver
expects before a single value is used.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from common.errors import PayloadError

AnyArray = npt.NDArray[Any]

VERSION = 2
MAX_HEADER_BYTES = 65_536

#: bytes of a header that is worth remembering
_SHORT = 128


class Spec(Protocol):
    """What a receiver expects; it alone decides how a payload is decoded."""

    @property
    def payload(self) -> type[Payload]:
        """The payload class this specification is for."""
        ...

    @property
    def max_bytes(self) -> int:
        """The most bytes that such a payload travels in, header included; what takes more is not even read."""
        ...


S = TypeVar("S", contravariant=True)


class Payload(Protocol):
    """A small data class that travels.

    ``decode(arrays, spec)`` raises PayloadError, naming what was expected, unless version, count, dtypes,
    shapes, finiteness and limits are all as ``spec`` says.
    """

    @property
    def kind(self) -> str:
        """What its header calls it."""
        ...

    def encode(self) -> list[AnyArray]:
        """Return the arrays that travel, the header first."""
        ...

    @classmethod
    def decode(cls, arrays: Sequence[AnyArray], spec: Any) -> Payload:
        """Rebuild a payload from ``arrays``: the one that was sent, or what it stands for."""
        ...

    @property
    def floats(self) -> int:
        """The number of values as the papers count a message: weights or pixels, no labels or headers."""
        ...


@runtime_checkable
class CarriesExamples(Protocol):
    """A payload with examples made to stand for the site's own, whatever else it carries."""

    @property
    def examples(self) -> Tensor:
        """Float32 [n, *shape], in the model's normalised space."""
        ...


def frame(kind: str, fields: Mapping[str, Any], arrays: Sequence[AnyArray]) -> list[AnyArray]:
    """Put a header with ``fields`` in front of ``arrays``."""
    return [_header({"kind": kind, "version": VERSION, **fields}), *arrays]


def encoded_bytes(*arrays: int) -> int:
    """Return the most bytes that a payload travels in whose arrays hold at most ``arrays`` bytes of values each."""
    return MAX_HEADER_BYTES + sum(arrays) + (1 + len(arrays)) * MAX_ARRAY_HEADER_BYTES


def _header(fields: Mapping[str, Any]) -> AnyArray:
    if all(type(value) in (str, int) for value in fields.values()):
        return _short_header(tuple(fields.items()))
    return np.frombuffer(_written(fields), dtype=np.uint8)


@lru_cache(maxsize=64)
def _short_header(fields: tuple[tuple[str, str | int], ...]) -> AnyArray:
    """Return a header that many payloads have, such as weights': the same array, to which nobody can write."""
    return np.frombuffer(_written(dict(fields)), dtype=np.uint8)


def _written(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()


def unframe(kind: str, arrays: Sequence[AnyArray]) -> tuple[dict[str, Any], Sequence[AnyArray]]:
    """Return the header's fields and the payload's arrays; PayloadError unless the header is a ``kind``'s."""
    header, body = unframe_plain(kind, arrays)
    _require_native(kind, body)
    return header, body


def unframe_plain(
    kind: str, arrays: Sequence[AnyArray]
) -> tuple[dict[str, Any], Sequence[AnyArray]]:
    """Return the header's fields and the arrays behind it as they came; PayloadError unless it is a ``kind``'s."""
    if not arrays:
        raise PayloadError(f"the payload is empty where a '{kind}' was expected")
    head = arrays[0]
    if head.dtype != np.uint8 or head.ndim != 1 or head.size > MAX_HEADER_BYTES:
        raise PayloadError(
            f"the payload has no header where a '{kind}' was expected: its first array is {describe(head)}"
        )
    try:
        text = head.tobytes()
        header = json.loads(text.decode()) if len(text) > _SHORT else _read_short(text)
    except (ValueError, RecursionError):
        raise PayloadError(f"the header of what should be a '{kind}' is not JSON") from None
    if not isinstance(header, dict) or header.get("kind") != kind:
        found = header.get("kind") if isinstance(header, dict) else header
        raise PayloadError(f"the payload is a {str(found)[:40]!r} where a '{kind}' was expected")
    if header.get("version") != VERSION:
        raise PayloadError(
            f"the '{kind}' has version {str(header.get('version'))[:20]}, this side reads {VERSION}: "
            "run the same release on the server and on every device"
        )
    return dict(header), arrays[1:]


@lru_cache(maxsize=64)
def _read_short(text: bytes) -> Any:
    """Read a header as short as weights', which comes with every reply; what is returned is not to be changed."""
    return json.loads(text.decode())


def _require_native(kind: str, arrays: Sequence[AnyArray]) -> None:
    """PayloadError for an array in the other byte order: its dtype has the expected name, and torch refuses it."""
    for array in arrays:
        if not array.dtype.isnative:
            raise PayloadError(
                f"the '{kind}' holds {array.dtype.name} in {array.dtype.str} byte order where this machine's own, "
                f"{array.dtype.newbyteorder('=').str}, was expected"
            )


def describe(array: AnyArray) -> str:
    """Return dtype and shape in words that go into an error."""
    return f"{array.dtype} of shape {tuple(array.shape)}"


def require_count(kind: str, arrays: Sequence[AnyArray], expected: int) -> None:
    """PayloadError unless there are ``expected`` arrays after the header."""
    if len(arrays) != expected:
        raise PayloadError(
            f"the '{kind}' holds {len(arrays)} arrays where {expected} were expected"
        )


def require_codec(part: Payload, wire: object, codec: str = "") -> None:
    """PayloadError for values in another codec than the run's: what only a wider one holds could not be sent on.

    A part's ``setting`` names the setting of the run's section ``wire`` that says how it travels, and what of the
    section is then its codec; ``codec`` is what it is to come in whatever these say.
    """
    setting, which = getattr(part, "setting", ("", ""))
    expected = codec or (getattr(wire, which) if which else "")
    found = getattr(part, "codec", "") or expected
    if expected and found != expected:
        message = f"wire.{setting}={expected}" if setting and not codec else expected
        raise PayloadError(f"it came as {found} where {message} was expected")


def require_finite(name: str, tensor: torch.Tensor) -> None:
    """PayloadError if a value of ``tensor`` is not a finite number."""
    if not is_finite(tensor):
        bad = int((~torch.isfinite(tensor)).sum())
        raise PayloadError(f"{name} holds {bad} of {tensor.numel()} values that are not finite")


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether every value of ``tensor`` is a finite number."""
    if not tensor.is_floating_point():
        return True
    # A sum is not finite where a summand is not. It may exceed its dtype where none is, and takes a tenth of the time.
    return math.isfinite(tensor.sum()) or bool(torch.isfinite(tensor).all())


def require_one_of(header: Mapping[str, Any], key: str, allowed: Iterable[str]) -> str:
    """Return the header's ``key``; PayloadError unless it is one of ``allowed``."""
    value, allowed = header.get(key), tuple(allowed)
    if value not in allowed:
        raise PayloadError(
            f"the header says {key} {str(value)[:40]!r}, allowed are {', '.join(allowed)}"
        )
    return str(value)


def narrowed(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``tensor`` as ``dtype``; PayloadError where a narrow one's range ends, rather than sending infinities."""
    narrow = tensor.to(dtype)
    if (
        dtype.itemsize < 4
        and bool(torch.isinf(narrow).any())
        and not bool(torch.isinf(tensor).any())
    ):
        most = f"{str(dtype).removeprefix('torch.')} holds ({torch.finfo(dtype).max:g})"
        raise PayloadError(f"{name} exceeds what {most}: send it as float32")
    return narrow


# ---- npy -----------------------------------------------------------------------------------------
# Arrays as NumPy's ``save`` writes them, written with their header made once, and read without NumPy's loader.
#
# ``numpy.load`` takes whatever comes for what it says it is: an archive gives an object that is no array, and a
# header that claims a terabyte has a terabyte asked for before a value is read. Here a claim is compared with the
# bytes that came, and nothing is evaluated, unpickled or copied.

#: what precedes the values at most, for arrays of numbers of any number of dimensions that a payload has
MAX_ARRAY_HEADER_BYTES = 512

_MAGIC = b"\x93NUMPY\x01\x00"
_START = len(_MAGIC) + 2
_HEADER = re.compile(
    rb"\{'descr': '([<>|][fiub]\d{1,2})', 'fortran_order': (False|True), "
    rb"'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\), \} *\n"
)
_NO_HEADER = "its header is not that of an array of numbers"


def write(array: AnyArray) -> bytes:
    """Return the bytes that ``numpy.save`` writes of an array of numbers."""
    if not array.flags.c_contiguous:
        buffer = BytesIO()
        np.save(buffer, array, allow_pickle=False)
        return buffer.getvalue()
    head = _head(array.dtype.str, array.shape)
    return b"".join((head, array.data)) if array.size else head


@lru_cache(maxsize=4096)
def _head(descr: str, shape: tuple[int, ...]) -> bytes:
    buffer = BytesIO()
    fields = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, fields)
    return buffer.getvalue()


def read(data: bytes) -> AnyArray:
    """Return the array of numbers that ``data`` holds, as a read-only view of it, or raise PayloadError."""
    if not data.startswith(_MAGIC):
        raise PayloadError("it is not an array as numpy.save writes one")
    length = int.from_bytes(data[len(_MAGIC) : _START], "little")
    start = _START + length
    if start > MAX_ARRAY_HEADER_BYTES:
        raise PayloadError(_NO_HEADER)
    try:
        dtype, shape, order = _announced(data[_START:start])
        announced = math.prod(shape) * dtype.itemsize
        if announced != len(data) - start:
            raise PayloadError(
                f"it announces {announced} bytes of {dtype} where {len(data) - start} came with it"
            )
        if not announced:
            return np.empty(0, np.uint8).view(dtype).reshape(shape, order=order)
        return np.ndarray(shape, dtype, data, start, order=order)
    except (TypeError, ValueError):
        raise PayloadError("no array can have its dtype or shape") from None


@lru_cache(maxsize=1024)
def _announced(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], Literal["C", "F"]]:
    """Return dtype, shape and order that a header gives; a federation's are few, and come again with every reply."""
    found = _HEADER.fullmatch(header)
    if found is None:
        raise PayloadError(_NO_HEADER)
    name, fortran, lengths = found.groups()
    shape = tuple(int(n) for n in lengths.split(b",") if n.strip())
    return np.dtype(name.decode()), shape, "F" if fortran == b"True" else "C"


# ---- flower arrays -------------------------------------------------------------------------------
# Flower's records of arrays, made of NumPy's: as ``ArrayRecord(arrays)`` makes them, to the byte, and sooner.

_KIND = "numpy.ndarray"
"""Flower's name for what ``numpy.save`` writes."""

R = TypeVar("R", ArrayRecord, ConfigRecord, MetricRecord, RecordDict)


def array_of(ndarray: np.ndarray[Any, Any]) -> Array:
    """Return what travels instead of an array."""
    # Array's constructor takes longer to see which of its forms is meant than all of this.
    array = Array.__new__(Array)
    array.__dict__.update(
        dtype=_name_of(ndarray.dtype), shape=ndarray.shape, stype=_KIND, data=write(ndarray)
    )
    return array


@lru_cache(maxsize=64)
def _name_of(dtype: np.dtype[Any]) -> str:
    return str(dtype)


def record_of(arrays: Iterable[Array]) -> ArrayRecord:
    """Return a record of arrays by their numbers; it holds these very objects, which nobody is to change."""
    return unchecked_record(ArrayRecord(), {str(i): array for i, array in enumerate(arrays)})


def unchecked_record(record: R, values: Mapping[str, Any]) -> R:
    """Return ``record``, just made, with ``values``, whose types are known: Flower's check of each takes longer."""
    record.__dict__["_data"].update(values)
    return record


# ---- values --------------------------------------------------------------------------------------
# How plain numbers travel: floats as float32, float16 or a byte between a group's extremes, classes as integers.

FLOAT_CODECS = {"float32": torch.float32, "float16": torch.float16}
"""The codecs of floating numbers, and the dtypes in which these travel."""

ROUNDED = 2e-3
"""How far rounding may take a value beyond its bound, as a share of it: float16 keeps eleven bits, bfloat16 eight."""


def pack(name: str, values: Tensor, codec: str) -> AnyArray:
    """Return floating ``values``, on any device, as an array of the dtype of ``codec``, one of `FLOAT_CODECS`."""
    values = values.detach().cpu().contiguous()
    require_finite(name, values)
    return np.asarray(narrowed(name, values, FLOAT_CODECS[codec]).numpy())


def unpack(name: str, array: AnyArray, shape: tuple[int, ...], codec: str) -> Tensor:
    """Return what ``pack`` made as float32 of ``shape``; PayloadError unless dtype, shape and values are right."""
    require_shape(name, array, shape, codec)
    values = torch.from_numpy(np.array(array)).float()
    require_finite(name, values)
    return values


def require_shape(name: str, array: AnyArray, shape: tuple[int, ...], dtype: str) -> None:
    """PayloadError unless ``array`` has ``shape`` and the dtype of that name."""
    if array.dtype.name != dtype or array.shape != shape:
        raise PayloadError(
            f"{name} is {describe(array)} where {dtype} of shape {shape} was expected"
        )


def pack_classes(labels: Tensor) -> AnyArray:
    """Return int64 ``labels``, on any device, in the smallest unsigned integer type that holds them."""
    values = labels.detach().cpu().numpy()
    return np.asarray(values.astype(np.min_scalar_type(int(values.max(initial=0)))))


def unpack_classes(name: str, array: AnyArray, shape: tuple[int, ...], classes: int) -> Tensor:
    """Return what ``pack_classes`` made as int64 of ``shape``; PayloadError unless all are from 0 to classes - 1."""
    if array.dtype.kind not in "iu" or array.shape != shape:
        raise PayloadError(
            f"{name} is {describe(array)} where integers of shape {shape} were expected"
        )
    low, high = int(array.min(initial=0)), int(array.max(initial=0))
    if low < 0 or high >= classes:
        raise PayloadError(
            f"a label is {low if low < 0 else high} where 0 to {classes - 1} are allowed"
        )
    return torch.from_numpy(array.astype(np.int64))


def require_shares(name: str, rows: Tensor) -> None:
    """PayloadError unless each row of ``rows`` [n, classes] is of shares: none below 0, together 1.

    Float16 and bfloat16 take each share, and so their sum, at most 2 in 1000 away from what it was.
    """
    if rows.numel() and not (
        float(rows.min()) >= 0 and float((rows.sum(-1) - 1).abs().max()) <= ROUNDED
    ):
        raise PayloadError(
            f"{name} are not shares of the classes: none may be below 0, and those of a row must sum to 1"
        )


def pack_levels(name: str, values: Tensor, axis: int) -> tuple[dict[str, Any], AnyArray]:
    """Return ``values`` in 256 levels, uint8, and the minima and maxima along ``axis`` for the header's ``range``.

    A level is 0 at the minimum and 255 at the maximum, so that a value is off by at most half of (hi - lo) / 255.
    """
    values = values.detach().cpu().contiguous()
    require_finite(name, values)
    others = [d for d in range(values.ndim) if d != axis]
    lo = values.amin(dim=others, keepdim=True).double()
    hi = values.amax(dim=others, keepdim=True).double()
    step = ((hi - lo) / 255).clamp_min(torch.finfo(torch.float32).tiny)
    levels = ((values.double() - lo) / step).round().clamp(0, 255)
    extremes = [lo.flatten().tolist(), hi.flatten().tolist()]
    return {"range": extremes}, levels.to(torch.uint8).numpy()


def unpack_levels(
    name: str, array: AnyArray, shape: tuple[int, ...], extremes: object, axis: int
) -> Tensor:
    """Return the values of the levels, float32; PayloadError without finite extremes for each of them."""
    require_shape(name, array, shape, "uint8")
    groups = shape[axis]
    problem = PayloadError(
        f"{name} needs a range of {groups} finite minima and maxima in its header"
    )
    try:
        bounds = torch.tensor(extremes, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise problem from None
    if bounds.shape != (2, groups) or not bool(torch.isfinite(bounds).all()):
        raise problem
    along = [groups if d == axis else 1 for d in range(len(shape))]
    lo, hi = bounds[0].view(along), bounds[1].view(along)
    levels = torch.from_numpy(np.array(array)).double()
    values = (lo + levels * ((hi - lo) / 255)).float()
    require_finite(name, values)
    return values
