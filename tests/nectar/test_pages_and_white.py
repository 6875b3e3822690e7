"""TIFF files of several pages, and greyscale of more than 8 bits: what is read, and what `nectar data` says of it."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest
from data_files import forget_loaded
from numpy.typing import NDArray
from PIL import Image, TiffImagePlugin

from common.data.folders.decode import Unreadable, read_image
from common.settings.images import ImagesSettings
from nectar.cli import main

SIDE = 12
FORM = "dataset=images images.size=12 images.channels=1 federation.sites=2 partition.kind=iid"
Plane = NDArray[np.int64]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget_loaded(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def plane(seed: int = 0, top: int = 255) -> Plane:
    """Return bright on the left, with noise, 0..top."""
    values = np.random.default_rng(seed).integers(0, top // 4, (SIDE, SIDE))
    values[:, : SIDE // 2] += top * 3 // 4
    return values


def read(path: Path, **form: object) -> Plane:
    settings = ImagesSettings(**{"size": SIDE, "channels": 1, **form})  # type: ignore[arg-type]
    return read_image(path, settings)[0].astype(np.int64)


def picture(values: Plane) -> Image.Image:
    return Image.fromarray(values.astype(np.uint8))


def sixteen(path: Path, values: Plane, order: str, white_is_zero: bool) -> None:
    """Write a 16-bit greyscale TIFF by hand, in either order of bytes, since Pillow writes no negative."""
    rows = values.astype(f"{order}u2").tobytes()
    tags = [
        (256, 4, SIDE), (257, 4, SIDE), (258, 3, 16), (259, 3, 1), (262, 3, 0 if white_is_zero else 1),
        (273, 4, 8), (277, 3, 1), (278, 4, SIDE), (279, 4, len(rows)),
    ]  # fmt: skip
    head = struct.pack(f"{order}2sHI", b"II" if order == "<" else b"MM", 42, 8 + len(rows))
    entries = b"".join(
        struct.pack(f"{order}HHI", tag, form, 1)
        + (struct.pack(f"{order}HH", value, 0) if form == 3 else struct.pack(f"{order}I", value))
        for tag, form, value in tags
    )
    path.write_bytes(head + rows + struct.pack(f"{order}H", len(tags)) + entries + bytes(4))


def test_of_a_file_of_several_pages_one_is_read_that_is_named(tmp_path: Path) -> None:
    """The first is black, and the second is the picture."""
    black, shown = np.zeros((SIDE, SIDE), np.int64), plane()
    path = tmp_path / "a.tif"
    picture(black).save(path, save_all=True, append_images=[picture(shown)])
    with pytest.raises(Unreadable, match=r"several pages: choose one by images.page"):
        read(path)
    with pytest.raises(Unreadable, match=r"no page 3, which images.page asks for"):
        read(path, page="3")
    for page, expected in (("1", black), ("2", shown), ("max", shown), ("mean", shown / 2)):
        assert np.abs(read(path, page=page) - expected).max() <= 0.5


def test_reduced_copies_are_not_pages(tmp_path: Path) -> None:
    shown, info = picture(plane()), TiffImagePlugin.ImageFileDirectory_v2()
    shown.encoderinfo = {"tiffinfo": info}
    small = shown.resize((4, 4))
    info[254] = 1
    small.encoderinfo = {"tiffinfo": info}
    shown.save(tmp_path / "a.tif", save_all=True, append_images=[small])
    with Image.open(tmp_path / "a.tif") as image:
        assert image.n_frames == 2  # type: ignore[attr-defined]
    assert np.array_equal(read(tmp_path / "a.tif"), plane())


@pytest.mark.parametrize("order", ["<", ">"])
def test_white_is_zero_at_16_bits_as_at_8(tmp_path: Path, order: str) -> None:
    deep = plane(top=65535)
    sixteen(tmp_path / "plain.tif", deep, order, False)
    sixteen(tmp_path / "turned.tif", 65535 - deep, order, True)
    both = [read(tmp_path / f"{name}.tif", bits=16) for name in ("plain", "turned")]
    assert np.array_equal(both[0], deep)
    assert np.array_equal(both[1], deep)


def test_a_camera_s_mpo_is_read_by_its_ending(tmp_path: Path) -> None:
    path = tmp_path / "a.mpo"
    more = [picture(plane(1))]
    picture(plane()).save(path, format="MPO", save_all=True, append_images=more, quality=100)
    assert np.abs(read(path) - plane()).mean() < 5


def test_what_is_black_scales_and_clips_and_turns_a_negative(tmp_path: Path) -> None:
    values = np.array([[900, 1000], [2000, 3000]], np.uint16)
    Image.fromarray(values).save(tmp_path / "a.png")
    for form, expected in (
        ({}, [900, 1000, 2000, 3000]),
        ({"black": 1000, "white": 2000}, [0, 0, 65535, 65535]),
        ({"black": 1000, "white": 3000}, [0, 0, 32768, 65535]),
    ):
        found = read(tmp_path / "a.png", size=2, bits=16, **form)
        assert found.ravel().tolist() == expected
    with pytest.raises(Unreadable, match=r"its white is 1000, not above images.black=2000"):
        read(tmp_path / "a.png", size=2, bits=16, black=2000, white=1000)


# ---- levels in few of the bits -------------------------------------------------------------------


def folder(place: Path, top: int, offset: int) -> str:
    for kind in ("a", "b"):
        (place / kind).mkdir(parents=True)
        for number in range(12):
            values = (plane(number, top) + offset).astype(np.uint16)
            Image.fromarray(values).save(place / kind / f"{number}.png")
    return f"images.folder={place}"


#: 12 bits, and a CT of -1000 to 1000 to which 32768 was added; in which range what is advised lies
LEVELS = {"12 bits": (4095, 0, {"white": (4095, 4095)}), "a scan": (2000, 31768, {})}
LEVELS["a scan"][2].update(black=(31268, 31768), white=(33767, 34268))


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("levels", LEVELS)
def test_levels_in_few_of_the_bits_are_warned_of_until_black_and_white_are_stated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, levels: str, bits: int
) -> None:
    """`nectar data` says which settings to type, and what is typed then is not warned of."""
    top, offset, within = LEVELS[levels]
    words = ["data", *FORM.split(), folder(tmp_path / "set", top, offset), f"images.bits={bits}"]
    assert main(words) == 0
    assert "less than an eighth of the range" in caplog.text
    advised = {k: int(v) for k, v in re.findall(r"images\.(black|white)=(\d+)", caplog.text)}
    assert advised.keys() == within.keys()
    assert all(low <= advised[name] <= high for name, (low, high) in within.items())
    caplog.clear()
    assert main([*words, *(f"images.{name}={value}" for name, value in advised.items())]) == 0
    assert "eighth" not in caplog.text


def test_so_of_arrays_and_not_of_a_published_set(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = np.full((40, 12, 12), 100, np.uint8)
    images[::2, :6] += 12
    np.savez(tmp_path / "a.npz", train_images=images, train_labels=np.arange(40) % 2)
    assert main(["data", f"data.file={tmp_path / 'a.npz'}", "federation.sites=2"]) == 0
    assert "values are 100 to 112 of 255, less than an eighth" in caplog.text
    caplog.clear()
    assert main(["data"]) == 0
    assert "eighth" not in caplog.text
