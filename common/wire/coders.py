"""Coders: how one tensor becomes one array, and back. Each checks what comes before it makes a tensor of it."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from common.errors import PayloadError
from common.wire.frame import describe
from common.wire.image_codecs import BYTES, is_picture
from common.wire.npy import AnyArray

if TYPE_CHECKING:
    from common.wire.jpeg import Sheet

FLOAT_CODECS = {"float32": torch.float32, "float16": torch.float16}
"""The codecs of floating numbers, and their dtypes on the wire."""

ROUNDED = 2e-3
"""How far rounding may take a value beyond its bound, as a share of it: float16 keeps eleven bits, bfloat16 eight."""

LEVELS = 255
"""The byte of the brightest value, and the highest of 256 levels."""

Constants = tuple[float, ...]
Shape = tuple[int, ...]
Header = Mapping[str, Any]


class Coder(ABC):
    """The encoding of a tensor."""

    #: what the array holds, in the words of an error
    travels_as: str

    #: the most bytes of a value
    itemsize: int

    #: whether the array has the tensor's own shape, which includes its number of rows
    keeps_shape: ClassVar[bool] = True

    @abstractmethod
    def pack(self, name: str, values: Tensor, header: dict[str, Any]) -> AnyArray:
        """Return finite ``values``, on any device, as an array; what is needed to read it goes into ``header``."""

    @abstractmethod
    def unpack(self, name: str, array: AnyArray, shape: Shape, header: Header) -> Tensor:
        """Return the tensor of ``shape``, on the CPU; PayloadError unless ``array`` and ``header`` can be one's."""

    def max_bytes(self, shape: Shape) -> int:
        """Return the most bytes that a tensor of ``shape`` takes."""
        return math.prod(shape) * self.itemsize


@dataclass(frozen=True)
class Plain(Coder):
    """Numbers in one dtype on the way, ``sent``, and in one at the receiver, ``given``.

    ``lent`` gives a read-only view of the array instead of a copy.
    """

    sent: torch.dtype
    given: torch.dtype
    lent: bool = False

    @cached_property
    def travels_as(self) -> str:  # type: ignore[override]
        """The dtype's name, which NumPy has too."""
        return str(self.sent).removeprefix("torch.")

    @property
    def itemsize(self) -> int:  # type: ignore[override]
        """The bytes of a value."""
        return self.sent.itemsize

    @cached_property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(self.travels_as)

    def pack(self, name: str, values: Tensor, header: dict[str, Any]) -> AnyArray:
        """Return ``values`` as ``sent``; PayloadError where a narrow one's range ends, rather than infinities."""
        values = values.detach().cpu()
        if values.dtype != self.sent:
            values = _narrowed(name, values, self.sent)
        return np.asarray(values.contiguous().numpy())

    def unpack(self, name: str, array: AnyArray, shape: Shape, header: Header) -> Tensor:
        """Return the tensor as ``given``."""
        require_array(name, array, shape, self._dtype)
        if self.sent == torch.bool:
            # A byte that is neither 0 nor 1 could be true in one place and false in another.
            array = np.not_equal(array.view(np.uint8), 0, out=np.empty(array.shape, np.bool_))
        elif array.flags.writeable or not self.lent:
            array = np.array(array)
        tensor = view_of(array)
        return tensor if tensor.dtype == self.given else tensor.to(self.given)


@lru_cache(maxsize=64)
def plain(dtype: torch.dtype, codec: str = "", *, lent: bool = False) -> Plain:
    """Return the coder of a tensor's own ``dtype``, or, of a float, of that of a ``codec`` of `FLOAT_CODECS`."""
    narrow = dtype.is_floating_point and codec
    return Plain(FLOAT_CODECS[codec] if narrow else dtype, dtype, lent)


@dataclass(frozen=True)
class Classes(Coder):
    """Whole numbers from 0, int64, in the smallest unsigned integer type that holds them."""

    travels_as = "integers"
    itemsize = 8

    def pack(self, name: str, values: Tensor, header: dict[str, Any]) -> AnyArray:
        """Return the integers in the smallest type."""
        numbers = values.detach().cpu().numpy()
        return np.asarray(numbers.astype(np.min_scalar_type(int(numbers.max(initial=0)))))

    def unpack(self, name: str, array: AnyArray, shape: Shape, header: Header) -> Tensor:
        """Return integers of any type as int64."""
        if array.dtype.kind not in "iu" or not array.dtype.isnative or array.shape != shape:
            raise PayloadError(
                f"{name} is {describe(array)} where integers of shape {shape} were expected"
            )
        return torch.from_numpy(array.astype(np.int64))


@dataclass(frozen=True)
class Levels(Coder):
    """Floats in 256 levels, uint8, between the extremes along ``axis``, which the header's ``range`` holds.

    A level is 0 at the minimum and 255 at the maximum, so that a value is off by at most half of (hi - lo) / 255.
    """

    axis: int

    travels_as = BYTES
    itemsize = 1

    def pack(self, name: str, values: Tensor, header: dict[str, Any]) -> AnyArray:
        """Return the levels."""
        values = values.detach().cpu()
        others = [d for d in range(values.ndim) if d != self.axis]
        lo = values.amin(dim=others, keepdim=True).double()
        hi = values.amax(dim=others, keepdim=True).double()
        step = ((hi - lo) / LEVELS).clamp_min(torch.finfo(torch.float32).tiny)
        header["range"] = [lo.flatten().tolist(), hi.flatten().tolist()]
        levels = ((values.double() - lo) / step).round().clamp(0, LEVELS)
        return np.asarray(levels.to(torch.uint8).numpy())

    def unpack(self, name: str, array: AnyArray, shape: Shape, header: Header) -> Tensor:
        """Return the values of the levels, float32; PayloadError without finite extremes for each of them."""
        require_array(name, array, shape, np.dtype(np.uint8))
        groups = shape[self.axis]
        problem = PayloadError(
            f"{name} needs a range of {groups} finite minima and maxima in its header"
        )
        try:
            bounds = torch.tensor(header.get("range"), dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise problem from None
        if bounds.shape != (2, groups) or not bool(torch.isfinite(bounds).all()):
            raise problem
        along = [groups if d == self.axis else 1 for d in range(len(shape))]
        lo, hi = bounds[0].view(along), bounds[1].view(along)
        levels = torch.from_numpy(np.array(array)).double()
        return (lo + levels * ((hi - lo) / LEVELS)).float()


@dataclass(frozen=True)
class Picture(Coder):
    """Images [n, C, H, W] as one JPEG picture: bytes as they are, or normalised ones where there are constants.

    ``mean`` and ``std``, a channel each in units of the brightest value, are the data set's public constants. They show
    normalised images as bytes: what is darker than black or brighter than white is cut.
    """

    quality: int
    mean: Constants = ()
    std: Constants = ()

    keeps_shape = False
    travels_as = "a JPEG file"

    def pack(self, name: str, values: Tensor, header: dict[str, Any]) -> AnyArray:
        """Return the file's bytes."""
        values = values.detach().cpu()
        levels = levels_of(values, self.mean, self.std) if self.mean else values
        return _sheet(tuple(values.shape)).write(levels, self.quality)

    def unpack(self, name: str, array: AnyArray, shape: Shape, header: Header) -> Tensor:
        """Return the images, float32 where there are constants, else uint8."""
        levels = _sheet(shape).read(array, name)
        return images_of(levels, self.mean, self.std) if self.mean else levels

    def max_bytes(self, shape: Shape) -> int:
        """Return the most bytes of such a file; 0 if none can hold the images."""
        try:
            return _sheet(shape).max_bytes
        except PayloadError:
            return 0


def _sheet(shape: Shape) -> Sheet:
    from common.wire.jpeg import Sheet  # Pillow, for runs that send pictures

    return Sheet.of(shape[0], shape[1:])


def image_coder(codec: str, axis: int = 1, mean: Constants = (), std: Constants = ()) -> Coder:
    """Return the coder of normalised images in a codec; levels have ranges of their own along ``axis``."""
    if codec.startswith("jpeg:"):
        return Picture(int(codec[5:]) if is_picture(codec) else 0, mean, std)
    return Levels(axis) if codec == BYTES else plain(torch.float32, codec)


# ---- checks --------------------------------------------------------------------------------------


def require_array(name: str, array: AnyArray, shape: Shape, dtype: np.dtype[Any]) -> None:
    """PayloadError unless ``array`` has ``shape`` and ``dtype``, this machine's byte order included."""
    if array.dtype != dtype or array.shape != shape:
        raise PayloadError(
            f"{name} is {describe(array)} where {dtype} of shape {shape} was expected"
        )


def require_finite(name: str, tensor: Tensor) -> None:
    """PayloadError if a value of ``tensor`` is not a finite number."""
    if not is_finite(tensor):
        bad = int((~torch.isfinite(tensor)).sum())
        raise PayloadError(f"{name} holds {bad} of {tensor.numel()} values that are not finite")


def is_finite(tensor: Tensor) -> bool:
    """Return whether every value of ``tensor`` is a finite number."""
    if not tensor.is_floating_point():
        return True
    # A sum is not finite where a summand is not. It may exceed its dtype where none is, and takes a tenth of the time.
    return math.isfinite(tensor.sum()) or bool(torch.isfinite(tensor).all())


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


def _narrowed(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
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


# ---- values --------------------------------------------------------------------------------------


def levels_of(images: Tensor, mean: Constants, std: Constants) -> Tensor:
    """Return normalised images, float [n, C, H, W], as uint8; what is darker than black or brighter than white is cut.

    ``mean`` and ``std``, a channel each, are in units of the brightest value.
    """
    shown = images.float() * _channels(std) + _channels(mean)
    return (shown.clamp(0, 1) * LEVELS).round().to(torch.uint8)


def images_of(levels: Tensor, mean: Constants, std: Constants) -> Tensor:
    """Return the values that ``levels_of`` clamps and rounds, float32 [n, C, H, W]."""
    return (levels.float() / LEVELS - _channels(mean)) / _channels(std)


def _channels(constants: Constants) -> Tensor:
    return torch.tensor(constants)[:, None, None]


def view_of(array: AnyArray) -> Tensor:
    """Return a tensor over the memory of a read-only array, which must not be written to.

    A header of an odd length puts the values at an odd place in what arrived, where not every machine reads numbers.
    """
    return torch.from_numpy(array if array.flags.aligned else array.copy())


def _hear_the_warning() -> None:
    """Suppress torch's warning about what `view_of` does, which it gives once in a process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        view_of(np.frombuffer(b"\0", np.uint8))


_hear_the_warning()
