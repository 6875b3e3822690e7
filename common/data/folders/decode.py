"""Image files decoded: none larger than this machine's memory is for, by a table of what each ending may be."""

from __future__ import annotations

import importlib
import io
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, TiffImagePlugin, UnidentifiedImageError

from common.errors import DataError
from common.settings.images import ImagesSettings

#: bytes a pixel takes at most on its way: as read, turned, with its alpha, on white, in colour
_BYTES_A_PIXEL = 24
#: of the memory there is, what one picture may take
_SHARE = 0.25

_CGROUP = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@cache
def most_pixels() -> int:
    """Return the pixels of the largest picture that is decoded; it does not depend on the machine."""
    pillows = 1024**3 // 4 // 3  # as Pillow has it, whatever it was set to
    return min(pillows, int(memory_bytes() * _SHARE) // _BYTES_A_PIXEL)


def memory_bytes() -> int:
    """Return the memory of this machine, or of the container that the process is in."""
    import psutil  # for sites with folders of their own

    found = [int(psutil.virtual_memory().total)]
    for path in _CGROUP:
        with suppress(OSError, ValueError):  # not there, or "max"
            found.append(int(path.read_text()))
    return min(size for size in found if size > 0)


@contextmanager
def bounded(what: str) -> Iterator[None]:
    """While this lasts, opening a picture that is too large raises Pillow's error, which becomes a sentence."""
    before = Image.MAX_IMAGE_PIXELS
    # Pillow warns above it, and raises above twice that
    Image.MAX_IMAGE_PIXELS = most_pixels() // 2
    try:
        yield
    except Image.DecompressionBombError:
        raise DataError(
            f"{what} holds a picture of more than {most_pixels():,} pixels, too large for this machine's memory: make "
            "it smaller, or leave it out"
        ) from None
    finally:
        Image.MAX_IMAGE_PIXELS = before


#: endings of files that are read, and the formats that their contents may have (the MPO of some cameras is a JPEG)
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".mpo")
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")

HEIF_ENDINGS = (".heic", ".heif")
"""Of files that are read where the user has installed pillow-heif, whose codecs have licences of their own."""

_WITH_ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")

_TOP = {8: 255, 16: 65535}
FILTER = Image.Resampling.BICUBIC  # Pillow's widens with the reduction, so nothing is aliased


#: TIFF's tags: what a page is, its bits a value, whether 0 is white or black
_SUBFILE, _BITS, _PHOTOMETRIC = 254, 258, 262
_MOST_PAGES = 4096
# Pillow reads 16-bit greyscale whose white is zero in one order of bytes alone.
TiffImagePlugin.OPEN_INFO.setdefault((b"MM", 0, (1,), 1, (16,), ()), ("I;16B", "I;16B"))
#: what a decoder makes of a JPEG's blocks that are missing, and bytes that would be taken for such blocks
_GREY, _MORE = 128, bytes(range(1, 255)) * 8

_TOO_LARGE = "too many pixels to be safe to decode"


class Unreadable(Exception):
    """A file that is not a usable image; the message gives the reason and quotes nothing of its content."""


@cache
def reads_heif() -> bool:
    """Return whether pillow-heif is installed; importing it lets Pillow read such files."""
    try:
        importlib.import_module("pillow_heif").register_heif_opener()
    except (ImportError, OSError):  # one that is there may lack a library of the system's
        return False
    return True


def dtype_of(settings: ImagesSettings) -> type[np.uint8] | type[np.uint16]:
    """Return the type of a stored value."""
    return np.uint8 if settings.bits == 8 else np.uint16


def read_image(
    path: Path, settings: ImagesSettings, most_pixels: int | None = None
) -> NDArray[np.generic]:
    """Decode a file to [C, size, size], uint8 or (``bits=16``) uint16; of an animation the first frame.

    The image is turned as its EXIF orientation says; what is transparent is seen on white. Grey is repeated for
    three channels, colour becomes ITU-R 601 luma for one. A 16-bit greyscale file is scaled from
    ``settings.black`` to ``settings.white``, or to the end of its bits' range, regardless of its values. One that would
    be decoded to more than ``most_pixels`` is not used, nor is a TIFF file of several pages unless
    ``settings.page`` selects one.
    """
    heif = path.suffix.lower() in HEIF_ENDINGS and reads_heif()
    formats = (*_FORMATS, "HEIF") if heif else _FORMATS
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=formats) as image:
                # A JPEG larger than needed is decoded at a half, a quarter or an eighth, still twice the size.
                image.draft(None, (2 * settings.size, 2 * settings.size))
                if most_pixels is not None and image.width * image.height > most_pixels:
                    raise Unreadable(_TOO_LARGE)
                if image.format == "JPEG" and _is_cut(image, path):
                    raise Unreadable("damaged (truncated)")
                return _array(image, settings, most_pixels or sys.maxsize)
    except Unreadable:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise Unreadable(_TOO_LARGE) from None
    except UnidentifiedImageError:
        raise Unreadable("not an image of a known format") from None
    except Exception as error:  # a damaged file can raise nearly anything
        reason = "truncated" if "truncated" in str(error) else type(error).__name__
        raise Unreadable(f"damaged ({reason})") from None


def _is_cut(image: Image.Image, path: Path) -> bool:
    """Return whether a JPEG's scan ends early although its end is marked: the decoder leaves what is missing grey.

    Bytes after the end of a complete scan change nothing.
    """
    last = np.asarray(image.getpixel((image.width - 1, image.height - 1)), dtype=np.float64)
    if (abs(last - _GREY) > 1).any():
        return False
    head, end, rest = path.read_bytes().rpartition(b"\xff\xd9")
    with Image.open(io.BytesIO(head + _MORE + end + rest), formats=["JPEG"]) as other:
        other.draft(image.mode, image.size)
        return other.size == image.size and other.tobytes() != image.tobytes()


def _array(image: Image.Image, settings: ImagesSettings, most_pixels: int) -> NDArray[np.generic]:
    side, top = (settings.size, settings.size), _TOP[settings.bits]
    seen = _frame(image, settings, most_pixels)
    values = np.asarray(ImageOps.fit(seen, side, FILTER), dtype=np.float64).reshape(*side, -1)
    deep = seen.mode == "F"
    values = (
        (values.clip(0, _TOP[16]) * (top / _TOP[16])).round() if deep else values * (top // _TOP[8])
    )
    planes = np.broadcast_to(values, (*side, settings.channels)).transpose(2, 0, 1)
    return np.ascontiguousarray(planes, dtype=dtype_of(settings))


def _frame(image: Image.Image, settings: ImagesSettings, most_pixels: int) -> Image.Image:
    """Return the first frame, or of a TIFF file's pages the one that ``settings.page`` says, or all as one."""
    pages = _pages(image) if image.format == "TIFF" else [0]
    if settings.page.isdigit() and image.format == "TIFF":
        if int(settings.page) > len(pages):
            raise Unreadable(f"no page {settings.page}, which images.page asks for")
        pages = [pages[int(settings.page) - 1]]
    if len(pages) > 1 and not settings.page:
        raise Unreadable("a TIFF file of several pages: choose one by images.page")
    sums, mode = np.zeros(()), ""
    for page in pages:
        image.seek(page)
        if image.width * image.height > most_pixels:
            raise Unreadable(_TOO_LARGE)
        upright = _upright(image, settings)
        if len(pages) == 1:
            return upright
        values = np.asarray(upright, dtype=np.float64)
        if mode and (mode != upright.mode or sums.shape != values.shape):
            raise Unreadable("pages of several sizes or kinds: images.page=N chooses one")
        mode = upright.mode
        sums = np.maximum(sums, values) if settings.page == "max" else sums + values
    if settings.page == "mean":
        sums = sums / len(pages)
    return Image.fromarray(
        sums.astype(np.float32) if mode == "F" else sums.round().astype(np.uint8)
    )


def _pages(image: Image.Image) -> list[int]:
    """Return the places of a TIFF file's full-size pages, without reduced copies and masks (NewSubfileType 1 and 4)."""
    pages = []
    for place in range(getattr(image, "n_frames", 1)):
        if place >= _MOST_PAGES:
            raise Unreadable(f"more than {_MOST_PAGES:,} pages")
        image.seek(place)
        if not _tag(image, _SUBFILE, 0) & 5:
            pages.append(place)
    image.seek(pages[0] if pages else 0)
    return pages or [0]


def _tag(image: Image.Image, number: int, default: int) -> int:
    found = image.tag_v2.get(number, default) if hasattr(image, "tag_v2") else default
    return int(found[0] if isinstance(found, tuple) else found)


def _upright(image: Image.Image, settings: ImagesSettings) -> Image.Image:
    """Return a page turned as its EXIF orientation says: deep grey as floats 0..65535, anything else as L or RGB."""
    turned = ImageOps.exif_transpose(image)
    if image.mode != "F" and not image.mode.startswith("I"):
        return on_white(turned).convert("L" if settings.channels == 1 else "RGB")
    values = np.asarray(turned)
    # Older Pillows open a 16-bit PNG as 32-bit integers. In any other file those, and floats, have no known range.
    if not (image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG")):
        raise Unreadable(f"values of type {values.dtype}, whose range is not known")
    white = settings.white or 2 ** _tag(image, _BITS, 16) - 1
    black = settings.black
    if black >= white:
        raise Unreadable(f"its white is {white}, not above images.black={black}")
    values = values.astype(np.float32).clip(black, white) - black
    if _tag(image, _PHOTOMETRIC, 1) == 0:  # white is zero, which Pillow turns round at 8 bits alone
        values = white - black - values
    scale = np.float32(_TOP[16] / (white - black))
    return Image.fromarray(values if scale == 1 else values * scale)


def on_white(image: Image.Image) -> Image.Image:
    """Return an opaque image: the colours beneath transparent pixels are arbitrary."""
    if image.mode not in _WITH_ALPHA and "transparency" not in image.info:
        return image
    seen = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen)
