"""Images of one byte a value as one JPEG picture: below one another, in columns where they are many.

Which picture it is follows from how many images there are and from their shape, before anything of it is decoded.
Each image is padded to blocks of 8 pixels with its own edge, so that no block holds two of them, and colour is
kept at full size: at equal bytes that errs less than half of it does, on CIFAR-10 and on images with noise.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from threading import Lock
from typing import Self

import numpy as np
import torch
from PIL import Image, ImageFile
from torch import Tensor
from torch.nn.functional import pad

from common.errors import PayloadError
from common.wire.npy import AnyArray

#: pixels of a block's side; of a picture's side, and of a picture, at most
_BLOCK, _LONGEST, _LARGEST = 8, 65_500, 80_000_000

#: bytes of a block of 64 values at most, coded at their longest, and of the tables and headers of a file
_A_BLOCK, _BESIDE = 256, 4096

_MODES = {1: "L", 3: "RGB"}

_writing = Lock()


@dataclass(frozen=True)
class Sheet:
    """A picture of ``count`` images of ``shape`` (C, H, W), C = 1 or 3, in ``columns``, filled up with 0."""

    count: int
    shape: tuple[int, ...]
    columns: int
    rows: int

    @classmethod
    def of(cls, count: int, shape: tuple[int, ...]) -> Self:
        """Return the picture of so many images, at least one, or raise PayloadError."""
        if count < 1:
            raise PayloadError("the picture holds no image")
        if len(shape) != 3 or shape[0] not in _MODES:
            raise PayloadError(
                f"images of shape {shape} are not pictures: one or three channels were expected"
            )
        high, wide = (_whole_blocks(side) for side in shape[1:])
        below = max(1, _LONGEST // high)
        columns = -(-count // below)
        rows = -(-count // columns)
        sheet = cls(count, shape, columns, rows)
        if max(columns * wide, high) > _LONGEST or sheet.width * sheet.height > _LARGEST:
            raise PayloadError(
                f"{count} images of {shape[1]} x {shape[2]} pixels are more than a JPEG file holds ({_LARGEST:,} "
                "pixels): send fewer, or set wire.images=uint8"
            )
        return sheet

    @property
    def tile(self) -> tuple[int, int]:
        """Height and width of an image with what fills it up."""
        return _whole_blocks(self.shape[1]), _whole_blocks(self.shape[2])

    @property
    def height(self) -> int:
        """The picture's, in pixels."""
        return self.rows * self.tile[0]

    @property
    def width(self) -> int:
        """The picture's, in pixels."""
        return self.columns * self.tile[1]

    @property
    def max_bytes(self) -> int:
        """The most bytes that it takes as a file, for any content."""
        blocks = self.height * self.width // _BLOCK**2
        return _BESIDE + _A_BLOCK * self.shape[0] * blocks

    def _joined(self, images: Tensor) -> AnyArray:
        """Return the picture's values, uint8 [height, width] or [height, width, 3]."""
        (high, wide), (channels, height, width) = self.tile, self.shape
        # torch pads no bytes by their edge
        filled = pad(images.float(), (0, wide - width, 0, high - height), mode="replicate").byte()
        tiles = torch.zeros(self.rows * self.columns, channels, high, wide, dtype=torch.uint8)
        tiles[: self.count] = filled
        joined = tiles.reshape(self.rows, self.columns, channels, high, wide)
        joined = joined.permute(0, 3, 1, 4, 2).reshape(self.height, self.width, channels)
        return np.asarray((joined[..., 0] if channels == 1 else joined).numpy())

    def _parted(self, values: AnyArray) -> Tensor:
        """Return the images of ``_joined``'s values."""
        (high, wide), (channels, height, width) = self.tile, self.shape
        joined = torch.from_numpy(values).reshape(self.rows, high, self.columns, wide, channels)
        tiles = joined.permute(0, 2, 4, 1, 3).reshape(-1, channels, high, wide)
        return tiles[: self.count, :, :height, :width].contiguous()

    def write(self, images: Tensor, quality: int) -> AnyArray:
        """Return the file's bytes, uint8 [n]; ``images`` are uint8 [count, C, H, W]."""
        picture, file = Image.fromarray(self._joined(images)), io.BytesIO()
        # Pillow gives the coder of shortest codes one buffer, of a size that pictures of noise exceed.
        with _writing:
            usual, ImageFile.MAXBLOCK = ImageFile.MAXBLOCK, self.max_bytes
            try:
                picture.save(file, "JPEG", quality=quality, subsampling=0, optimize=True)
            finally:
                ImageFile.MAXBLOCK = usual
        return np.frombuffer(file.getvalue(), np.uint8)

    def read(self, data: AnyArray, name: str = "the set of images") -> Tensor:
        """Return the images, uint8 [count, C, H, W], that a file of bytes ``data`` [n] shows.

        PayloadError if it is anything else than the baseline JPEG of such a picture; nothing is decoded then.
        """
        if data.dtype != np.uint8 or data.ndim != 1 or len(data) > self.max_bytes:
            raise PayloadError(
                f"{name} is {data.dtype} of shape {data.shape} where a JPEG file of at most {self.max_bytes} bytes "
                "was expected"
            )
        file = data.tobytes()
        _require_plain(file, self.width, self.height, self.shape[0])
        try:
            with Image.open(io.BytesIO(file), formats=["JPEG"]) as picture:
                if picture.mode != _MODES[self.shape[0]] or picture.size != (
                    self.width,
                    self.height,
                ):
                    raise PayloadError(f"the JPEG file shows {picture.mode} of {picture.size}")
                values = np.array(picture)
        except (OSError, SyntaxError, ValueError, IndexError, KeyError) as error:
            raise PayloadError(
                f"the JPEG file cannot be decoded ({type(error).__name__})"
            ) from None
        return self._parted(values)


def _whole_blocks(side: int) -> int:
    return -(-side // _BLOCK) * _BLOCK


# ---- the file ------------------------------------------------------------------------------------
# What a JPEG file says of itself, read before anything of it is decoded.
#
# A file of a few kilobytes can ask for gigabytes of pixels, or for hundreds of passes over them. So nothing but what
# Pillow writes of a grey or a colour picture gets as far as a decoder: the plain baseline form, and nothing else.

_START, _END = b"\xff\xd8", b"\xff\xd9"
_JFIF, _TABLES, _BASELINE, _HUFFMAN, _SCAN = 0xE0, 0xDB, 0xC0, 0xC4, 0xDA

#: segments of tables that a file may hold: Pillow writes up to two of values and four of codes
_MOST_TABLES = 16

#: where coded values end: at 0xFF before anything but the 0 that marks it as a value
_AFTER_SCAN = re.compile(rb"\xff[^\x00]", re.DOTALL)

_NAMES = {
    0xC2: "progressive",
    0xDD: "restart intervals",
    0xE1: "EXIF",
    0xE2: "a colour profile",
    0xEE: "an Adobe segment",
    0xFE: "a comment",
}


def _require_plain(data: bytes, width: int, height: int, components: int) -> None:
    """Refuse a file that is not the baseline JPEG of one picture of this form.

    Parameters
    ----------
    components : int
        1 (grey) or 3 (colour, each component with as many values as the others).
    """
    if not data.startswith(_START):
        raise PayloadError("the pictures are not a JPEG file")
    at, scans, tables, framed = len(_START), 0, 0, False
    while data[at : at + 2] != _END:
        marker, body = _segment(data, at)
        first, at = at == len(_START), at + 4 + len(body)
        if marker == _JFIF:
            _require_jfif(body, first=first)
        elif marker in (_TABLES, _HUFFMAN):
            tables += 1
            if tables > _MOST_TABLES:
                raise PayloadError(f"the JPEG file holds more than {_MOST_TABLES} tables")
        elif marker == _BASELINE and not framed:
            framed = True
            _require_frame(body, width, height, components)
        elif marker == _SCAN and framed:
            scans += 1
            if scans > components:
                raise PayloadError(
                    f"the JPEG file has more than {components} scans, one per component"
                )
            at = _end_of_scan(data, at)
        else:
            named = _NAMES.get(marker, f"a segment {marker:02X}")
            raise PayloadError(
                f"the JPEG file holds {named} where a baseline picture and nothing else was expected"
            )
    if not scans:
        raise PayloadError("the JPEG file holds no picture")
    if at + len(_END) != len(data):
        raise PayloadError(f"{len(data) - at - len(_END)} bytes follow the end of the JPEG file")


def _segment(data: bytes, at: int) -> tuple[int, bytes]:
    """Return the marker of the segment that begins at ``at``, and what it holds."""
    length = int.from_bytes(data[at + 2 : at + 4], "big")
    body = data[at + 4 : at + 2 + length]
    if at + 4 > len(data) or len(body) != max(0, length - 2):
        raise PayloadError("the JPEG file is cut short")
    if data[at] != 0xFF or length < 2:
        raise PayloadError("the JPEG file is damaged")
    return data[at + 1], body


def _require_jfif(body: bytes, *, first: bool) -> None:
    """Refuse another segment of that number than JFIF's own without a preview, or a second one."""
    if not first or len(body) != 14 or not body.startswith(b"JFIF\0") or body[12:] != b"\0\0":
        raise PayloadError("the JPEG file holds a preview, or another header than JFIF's")


def _require_frame(body: bytes, width: int, height: int, components: int) -> None:
    if len(body) < 6 or body[0] != 8 or len(body) != 6 + 3 * body[5]:
        raise PayloadError("the JPEG file has values of other than 8 bits, or a damaged header")
    if body[5] != components:
        raise PayloadError(
            f"the JPEG file has {body[5]} components where {components} were expected"
        )
    found = int.from_bytes(body[3:5], "big"), int.from_bytes(body[1:3], "big")
    if found != (width, height):
        raise PayloadError(
            f"the JPEG file is {found[0]} pixels wide and {found[1]} high where {width} and {height} were expected"
        )
    if any(body[7 + 3 * i] != 0x11 for i in range(components)):
        raise PayloadError("the JPEG file has fewer values of one component than of another")


def _end_of_scan(data: bytes, at: int) -> int:
    found = _AFTER_SCAN.search(data, at)
    if found is None:
        raise PayloadError("the JPEG file is cut short")
    return found.start()
