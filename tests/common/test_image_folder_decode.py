"""One file to an array: every kind of file by values worked out by hand."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageFile

from common.data.folders import decode as decoding
from common.data.folders.decode import Unreadable, read_image, reads_heif
from common.data.folders.folder import _candidates
from common.errors import DataError
from common.settings.images import ImagesSettings

pytestmark = pytest.mark.promise(
    "A site is the master of its own machine",
    "A picture that would take over a quarter of the memory is left out and named",
)


def decode(path: Path, **values: object) -> NDArray[np.generic]:
    return read_image(path, ImagesSettings.model_validate({"size": 2, **values}))


def saved(tmp_path: Path, image: Image.Image, name: str = "x.png", **how: object) -> Path:
    image.save(tmp_path / name, **how)  # type: ignore[arg-type]
    return tmp_path / name


SIXTEEN = np.array([[0, 257], [4095, 65535]], dtype=np.uint16)


def test_sixteen_bits_are_scaled_by_their_range(tmp_path: Path) -> None:
    """65535 -> 255, 257 -> 1, 4095 -> 4095/257 = 15.93 -> 16: never the low byte, never cut off at 255."""
    path = saved(tmp_path, Image.fromarray(SIXTEEN))
    assert decode(path, channels=1).tolist() == [[[0, 1], [16, 255]]]
    assert decode(path, channels=3).tolist() == [[[0, 1], [16, 255]]] * 3


def test_sixteen_bits_are_kept_where_asked(tmp_path: Path) -> None:
    path = saved(tmp_path, Image.fromarray(SIXTEEN))
    kept = decode(path, channels=1, bits=16)
    assert kept.dtype == np.uint16
    assert kept.tolist() == [SIXTEEN.tolist()]
    eight = saved(tmp_path, Image.new("L", (2, 2), 3), "8.png")
    assert decode(eight, channels=1, bits=16).tolist() == [[[771, 771]] * 2], "3/255 = 771/65535"


def test_sixteen_bit_tiff_of_either_byte_order(tmp_path: Path) -> None:
    for mode in ("I;16", "I;16B"):
        raw = SIXTEEN.astype("<u2" if mode == "I;16" else ">u2").tobytes()
        path = saved(tmp_path, Image.frombytes(mode, (2, 2), raw), f"{mode[2:]}.tif")
        assert decode(path, channels=1, bits=16).tolist() == [SIXTEEN.tolist()]


def test_values_without_a_known_range_are_refused(tmp_path: Path) -> None:
    for dtype in (np.int32, np.float32):
        path = saved(tmp_path, Image.fromarray(np.ones((2, 2), dtype)), "deep.tif")
        with pytest.raises(Unreadable, match="range is not known"):
            decode(path)


def test_grey_becomes_three_equal_channels_and_colour_luma(tmp_path: Path) -> None:
    grey = saved(tmp_path, Image.new("L", (2, 2), 77), "grey.png")
    assert decode(grey).tolist() == [[[77, 77]] * 2] * 3
    red = saved(tmp_path, Image.new("RGB", (2, 2), (200, 100, 50)), "red.png")
    assert decode(red).tolist() == [[[v, v]] * 2 for v in (200, 100, 50)]
    luma = round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)
    assert decode(red, channels=1).tolist() == [[[luma, luma]] * 2]


def test_what_is_transparent_is_seen_on_white(tmp_path: Path) -> None:
    image = Image.new("RGBA", (2, 2), (0, 0, 0, 0))
    image.putpixel((0, 0), (10, 20, 30, 255))
    expected = [[[v, 255], [255, 255]] for v in (10, 20, 30)]
    assert decode(saved(tmp_path, image)).tolist() == expected
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([10, 20, 30, 0, 0, 0])
    palette.putpixel((0, 0), 0)
    path = saved(tmp_path, palette, "p.png", transparency=1)
    assert decode(path).tolist() == expected


def test_a_palette_and_two_colours(tmp_path: Path) -> None:
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([0, 0, 0, 9, 8, 7])
    assert decode(saved(tmp_path, palette)).tolist() == [[[v, v]] * 2 for v in (9, 8, 7)]
    assert (
        decode(saved(tmp_path, Image.new("1", (2, 2), 1), "1.png")).tolist()
        == [[[255] * 2] * 2] * 3
    )


def test_the_camera_s_orientation_is_honoured(tmp_path: Path) -> None:
    """Orientation 6: the first row of the file is the right side of the picture."""
    image = Image.fromarray(np.array([[10, 20], [30, 40]], dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    path = saved(tmp_path, image, exif=exif)
    assert decode(path, channels=1).tolist() == [[[30, 10], [40, 20]]]


def test_the_middle_of_the_longer_side_is_kept(tmp_path: Path) -> None:
    row = np.repeat(np.array([0, 0, 100, 200, 0, 0], dtype=np.uint8), 4)
    wide = saved(tmp_path, Image.fromarray(np.tile(row, (8, 1))))
    assert decode(wide, channels=1, size=8).tolist() == [[[100] * 4 + [200] * 4] * 8]
    tall = saved(tmp_path, Image.fromarray(np.tile(row, (8, 1)).T.copy()), "tall.png")
    assert decode(tall, channels=1, size=8)[0].T.tolist() == [[100] * 4 + [200] * 4] * 8


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_fine_pattern_becomes_its_mean(tmp_path: Path, dtype: type[np.generic]) -> None:
    """Columns of black and white at 64 pixels are an even grey at 8: nothing is aliased."""
    top = np.iinfo(dtype).max  # type: ignore[type-var]
    image = Image.fromarray(np.tile(np.array([0, top], dtype=dtype), (64, 32)))
    values = decode(saved(tmp_path, image), channels=1, size=8)
    assert np.abs(values.astype(int) - 127.5).max() < 8


def test_a_large_jpeg_keeps_its_colours(tmp_path: Path) -> None:
    pixels = np.zeros((800, 800, 3), np.uint8)
    pixels[:400], pixels[400:] = (200, 40, 40), (40, 40, 200)
    path = saved(tmp_path, Image.fromarray(pixels), "x.jpg", quality=95)
    values = decode(path, size=8).astype(int)
    for row, colour in ((0, (200, 40, 40)), (7, (40, 40, 200))):
        assert np.abs(values[:, row] - np.array(colour)[:, None]).max() < 6


def test_a_bomb_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, Image.new("L", (30, 30)))
    for limit in (500, 100):  # above the limit Pillow warns, above twice the limit it refuses
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(Unreadable, match="too many pixels"):
            decode(path)


def test_a_picture_larger_than_the_memory_is_for_is_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is the size it is decoded to: a large JPEG is read at an eighth."""
    settings = ImagesSettings.model_validate({"size": 2})
    read_image(saved(tmp_path, Image.new("L", (800, 800)), "x.jpg"), settings, 10_000)
    path = saved(tmp_path, Image.new("L", (101, 100)))
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("it was decoded"))
    with pytest.raises(Unreadable, match="too many pixels"):
        read_image(path, settings, 10_000)


def test_no_picture_takes_more_than_a_quarter_of_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = decoding.most_pixels.__wrapped__
    gigabytes = {64: 1024**3 // 12, 1: 1024**3 // 4 // 24, 0.25: 1024**3 // 16 // 24}
    for size, pixels in gigabytes.items():
        monkeypatch.setattr(decoding, "memory_bytes", lambda size=size: int(size * 1024**3))
        assert most() == pixels
    monkeypatch.undo()
    assert 2**28 < decoding.memory_bytes() < 2**45


def test_another_set_s_picture_that_is_too_large_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, before = saved(tmp_path, Image.new("L", (101, 100))), Image.MAX_IMAGE_PIXELS
    monkeypatch.setattr(decoding, "most_pixels", lambda: 10_000)
    message = "the set holds a picture of more than 10,000 pixels"
    with pytest.raises(DataError, match=message), decoding.bounded("the set"):
        Image.open(path)
    assert before == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize("length", [0, 1, 20, 60, -40])
@pytest.mark.parametrize("name", ["x.png", "x.jpg", "x.gif", "x.bmp", "x.tif", "x.webp"])
def test_a_cut_file_is_unreadable_whatever_its_format(
    tmp_path: Path, name: str, length: int
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (30, 30, 3), dtype=np.uint8)
    path = saved(tmp_path, Image.fromarray(noise), name)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(Unreadable):
        decode(path)


@pytest.fixture
def heif(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Stand in for pillow-heif: a module that opens files that begin with its own six bytes, two grey pixels."""

    class Opened(ImageFile.ImageFile):
        format = "HEIF"

        def _open(self) -> None:
            self._mode, self._size = "L", (2, 2)
            self.tile = [ImageFile._Tile("raw", (0, 0, 2, 2), 6, ("L", 0, 1))]

    module, called = ModuleType("pillow_heif"), []

    def register() -> None:
        called.append("registered")
        Image.register_open("HEIF", Opened, lambda prefix: prefix.startswith(b"a heic"))

    module.__dict__["register_heif_opener"] = register
    monkeypatch.setitem(sys.modules, "pillow_heif", module)
    reads_heif.cache_clear()
    yield called
    reads_heif.cache_clear()
    Image.OPEN.pop("HEIF", None)
    Image.ID[:] = [one for one in Image.ID if one != "HEIF"]


def test_heic_is_read_where_its_reader_is_installed(heif: list[str], tmp_path: Path) -> None:
    (tmp_path / "x.HEIC").write_bytes(b"a heic" + bytes([1, 2, 3, 4]))
    (tmp_path / "x.png").write_bytes(b"a heic" + bytes([1, 2, 3, 4]))
    assert decode(tmp_path / "x.HEIC", channels=1).tolist() == [[[1, 2], [3, 4]]]
    assert heif == ["registered"]
    with pytest.raises(Unreadable, match="not an image of a known format"):
        decode(tmp_path / "x.png", channels=1)


def test_heic_without_its_reader_is_said_to_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    reads_heif.cache_clear()
    (tmp_path / "x.heic").write_bytes(b"a heic")
    assert [why for _, why in _candidates(tmp_path / "x.heic")] == [
        "HEIC: pip install pillow-heif reads it"
    ]
    with pytest.raises(Unreadable, match="not an image of a known format"):
        decode(tmp_path / "x.heic")
    reads_heif.cache_clear()


def photograph(side: int = 160) -> Image.Image:
    """A picture without two equal blocks."""
    ramp = np.random.default_rng(0).integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8)
    return Image.fromarray(ramp).resize((side, side), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("how", [{}, {"progressive": True}, {"subsampling": 0, "quality": 95}])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("size", [8, 64, 160])
def test_a_jpeg_whose_scan_is_cut_is_not_taken_for_grey(
    how: dict[str, object], mode: str, size: int, tmp_path: Path
) -> None:
    whole = saved(tmp_path, photograph().convert(mode), "whole.jpg", **how)
    before = decode(whole, size=size)
    content = whole.read_bytes()
    start = content.index(b"\xff\xda") + 14
    for share in (0.05, 0.3, 0.6):
        end = start + int(share * (len(content) - start))
        for ending in (b"\xff\xd9", b""):
            cut = tmp_path / "cut.jpg"
            cut.write_bytes(content[:end].rstrip(b"\xff") + ending)
            if "progressive" in how and share > 0.05:  # all of a coarse picture may be there
                continue
            with pytest.raises(Unreadable, match="truncated"):
                decode(cut, size=size)
    assert (decode(whole, size=size) == before).all()


@pytest.mark.parametrize("how", [{}, {"progressive": True}, {"restart_marker_blocks": 1}])
def test_a_jpeg_that_is_grey_is_taken(how: dict[str, object], tmp_path: Path) -> None:
    for mode, grey in (("L", 128), ("RGB", (128, 128, 128)), ("CMYK", (127, 127, 127, 128))):
        whole = saved(tmp_path, Image.new(mode, (40, 24), grey), "grey.jpg", **how)
        assert decode(whole, size=8).shape == (3, 8, 8)
        picture = photograph().convert("RGB")
        picture.paste((128, 128, 128), (0, 100, 160, 160))
        assert decode(saved(tmp_path, picture.convert(mode), "part.jpg", **how), size=32).any()
        after = tmp_path / "after.jpg"
        after.write_bytes(whole.read_bytes() + b"\0more\xff\xd9")
        assert decode(after, size=8).shape == (3, 8, 8)
