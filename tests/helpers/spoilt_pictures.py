"""What a site can send instead of a JPEG picture, each made of a whole one, and why it is refused."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping

import numpy as np
from PIL import Image

Spoil = Callable[[bytes], bytes]


def saved(picture: Image.Image, form: str = "JPEG", **how: object) -> bytes:
    """Return a picture's file."""
    file = io.BytesIO()
    picture.save(file, form, **how)
    return file.getvalue()


def opened(data: bytes) -> Image.Image:
    """Return a file's picture, in memory."""
    picture = Image.open(io.BytesIO(data))
    picture.load()
    return picture


def segment(marker: int, body: bytes) -> bytes:
    """Return a segment of a JPEG file."""
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def behind_start(data: bytes, added: bytes) -> bytes:
    """Return the file with something before all of its segments but JFIF's."""
    return data[:20] + added + data[20:]


def frame_at(data: bytes) -> int:
    """Return where the segment begins that says how large the picture is."""
    return data.index(b"\xff\xc0")


def with_sides(width: int, height: int) -> Spoil:
    """Return what has a file claim other sides."""

    def spoil(data: bytes) -> bytes:
        at = frame_at(data) + 5
        return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]

    return spoil


def scans_of(data: bytes) -> bytes:
    """Return the file's scan, with its header."""
    return data[data.index(b"\xff\xda") : -2]


def animated(form: str) -> Spoil:
    """Return what puts two pictures, one after the other, instead of one file."""

    def spoil(data: bytes) -> bytes:
        picture = opened(data)
        other = Image.fromarray(255 - np.asarray(picture))
        return saved(picture, form, save_all=True, append_images=[other])

    return spoil


def with_preview(data: bytes) -> bytes:
    """Return the file with a preview of one pixel in JFIF's segment."""
    return data[:2] + segment(0xE0, data[6:18] + b"\x01\x01" + bytes(3)) + data[20:]


SPOILT: Mapping[str, tuple[Spoil, str]] = {
    "text": (lambda data: b"these are no pictures", "not a JPEG file"),
    "nothing": (lambda data: b"", "not a JPEG file"),
    "png": (lambda data: saved(opened(data), "PNG"), "not a JPEG file"),
    "animated gif": (animated("GIF"), "not a JPEG file"),
    "animated png": (animated("PNG"), "not a JPEG file"),
    "several pictures": (animated("MPO"), "holds (EXIF|a colour profile)"),
    "bomb of sides": (with_sides(65_500, 65_500), "65500 pixels wide and 65500 high"),
    "no height": (with_sides(8, 0), "8 pixels wide and 0 high"),
    "bomb of scans": (lambda data: data[:-2] + 9 * scans_of(data) + data[-2:], "scans"),
    "progressive": (
        lambda data: saved(opened(data), progressive=True),
        "holds progressive where a baseline",
    ),
    "exif": (lambda data: behind_start(data, segment(0xE1, b"Exif\0\0" + bytes(20))), "holds EXIF"),
    "colour profile": (
        lambda data: behind_start(data, segment(0xE2, b"ICC_PROFILE\0\1\1" + bytes(200))),
        "holds a colour profile",
    ),
    "comment": (lambda data: behind_start(data, segment(0xFE, b"a word")), "holds a comment"),
    "preview": (with_preview, "holds a preview"),
    "second jfif": (lambda data: behind_start(data, data[2:20]), "another header than JFIF's"),
    "cmyk": (
        lambda data: saved(opened(data).convert("CMYK")),
        "(an Adobe segment|4 components)",
    ),
    "restarts": (
        lambda data: saved(opened(data), restart_marker_blocks=1, subsampling=0),
        "holds restart intervals",
    ),
    "twelve bits": (
        lambda data: data[: (at := frame_at(data) + 4)] + b"\x0c" + data[at + 1 :],
        "other than 8 bits",
    ),
    "two frames": (
        lambda data: behind_start(data, 2 * data[frame_at(data) : data.index(b"\xff\xc4")]),
        "holds a segment C0",
    ),
    "many tables": (
        lambda data: behind_start(data, 40 * segment(0xDB, bytes([0] + 64 * [1]))),
        "more than 16 tables",
    ),
    "no scan": (lambda data: data[: data.index(b"\xff\xda")] + data[-2:], "no picture"),
    "cut in the middle": (lambda data: data[: len(data) // 2], "(cut short|damaged)"),
    "cut at its end": (lambda data: data[:-2], "cut short"),
    "cut to its start": (lambda data: data[:2], "cut short"),
    "more behind": (lambda data: data + b"more", "4 bytes follow"),
    "two files": (lambda data: data + data, "bytes follow the end"),
}
"""Each by its name: what makes it of a whole file, and a regular expression that finds the reason in the refusal."""

OF_COLOUR: Mapping[str, tuple[Spoil, str]] = {
    "grey": (lambda data: saved(opened(data).convert("L")), "1 components where 3"),
    "half the colour": (lambda data: saved(opened(data), subsampling=2), "fewer values of one"),
}
"""The same of a colour picture alone."""
