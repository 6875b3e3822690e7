"""What a JPEG file says of itself, read before anything of it is decoded.

A file of a few kilobytes can ask for gigabytes of pixels, or for hundreds of passes over them. So nothing but what
Pillow writes of a grey or a colour picture gets as far as a decoder: the plain baseline form, and nothing beside it.
"""

from __future__ import annotations

import re

from common.errors import PayloadError

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


def require_plain(data: bytes, width: int, height: int, components: int) -> None:
    """Refuse a file that is not the baseline JPEG of one picture of this form.

    Parameters
    ----------
    components : int
        1 (grey) or 3 (colour, each component with as many values as the others).

    Raises
    ------
    PayloadError
        Saying what it is or holds instead.
    """
    if not data.startswith(_START):
        raise PayloadError("the pictures are no JPEG file")
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
                    f"the JPEG file has more than {components} scans, which is one a component"
                )
            at = _end_of_scan(data, at)
        else:
            named = _NAMES.get(marker, f"a segment {marker:02X}")
            raise PayloadError(
                f"the JPEG file holds {named} where a baseline picture and nothing beside it was expected"
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
