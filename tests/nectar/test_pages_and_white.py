"""TIFF files of several pages, and greyscale of more than 8 bits, under `nectar data`, `run` and `score`."""

from __future__ import annotations

import json
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
FORM = (
    "dataset=images",
    "images.size=12",
    "images.channels=1",
    "federation.sites=2",
    "partition.kind=iid",
)
TRAINING = ("fedavg.epochs=20", "fedavg.lr=0.1", "model.width=4", "fedavg.batch=8")
RUN = ("run", "fedavg", "rounds=3", *TRAINING, *FORM)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget_loaded(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NECTAR_RUNS", str(tmp_path / "runs"))


def plane(kind: str, seed: int, top: int) -> NDArray[np.int64]:
    """Return bright on the left (a) or on the right (b), with noise, 0..top."""
    rng = np.random.default_rng([seed, ord(kind)])
    values = rng.integers(0, top // 4, (SIDE, SIDE))
    half = slice(0, SIDE // 2) if kind == "a" else slice(SIDE // 2, SIDE)
    values[:, half] += top * 3 // 4
    return values


def sixteen(path: Path, values: NDArray[np.int64], order: str, white_is_zero: bool) -> None:
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


def pages(path: Path, *, reduced: bool = False) -> None:
    """Write a TIFF file whose first page is black, and whose second is the picture."""
    picture = Image.fromarray(plane(path.parent.name, int(path.stem), 255).astype(np.uint8))
    black = Image.new("L", (SIDE, SIDE))
    info = TiffImagePlugin.ImageFileDirectory_v2()
    if reduced:
        picture.encoderinfo = {"tiffinfo": info}
        small = picture.resize((4, 4))
        info[254] = 1
        small.encoderinfo = {"tiffinfo": info}
        picture.save(path, save_all=True, append_images=[small])
    else:
        black.save(path, save_all=True, append_images=[picture])


def folder(place: Path, write: object, *, each: int = 24, ending: str = "tif") -> Path:
    for kind in ("a", "b"):
        (place / kind).mkdir(parents=True)
        for number in range(each):
            write(place / kind / f"{number}.{ending}")  # type: ignore[operator]
    return place


def accuracy(words: list[str], tmp_path: Path) -> float:
    assert main([*RUN, *words, "--note-record", str(tmp_path / "note")]) == 0
    lines = (Path((tmp_path / "note").read_text().strip()) / "metrics.jsonl").read_text()
    return float(json.loads(lines.splitlines()[-1])["test"]["accuracy"])


@pytest.mark.extended
@pytest.mark.parametrize("page", ["2", "max", "mean"])
def test_a_file_of_several_pages_is_not_used_until_one_says_which(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], page: str
) -> None:
    place = folder(tmp_path / "set", pages)
    words = [f"images.folder={place}"]
    assert main([*RUN, *words]) == 2
    assert "a TIFF file of several pages: images.page says which: 48" in capfd.readouterr().err
    assert accuracy([*words, f"images.page={page}"], tmp_path) == 1.0
    assert main(["data", *FORM, *words, "images.page=3"]) == 2
    assert "no page 3, which images.page asks for: 48" in capfd.readouterr().err


def test_so_in_the_test_folder_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def single(path: Path) -> None:
        Image.fromarray(plane(path.parent.name, int(path.stem), 255).astype(np.uint8)).save(path)

    folder(tmp_path / "set/train", single)
    folder(tmp_path / "set/test", pages, each=2)
    single(tmp_path / "set/test/a/9.png")
    single(tmp_path / "set/test/b/9.png")
    words = ["data", *FORM, f"images.folder={tmp_path / 'set'}"]
    assert main(words) == 0
    message = capfd.readouterr().out
    assert "test/a/0.tif: a TIFF file of several pages: images.page says which" in message
    assert "test      2 images" in message


@pytest.mark.extended
def test_reduced_copies_are_not_pages(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = folder(tmp_path / "set", lambda path: pages(path, reduced=True))
    with Image.open(place / "a/0.tif") as image:
        assert image.n_frames == 2  # type: ignore[attr-defined]
    assert accuracy([f"images.folder={place}"], tmp_path) == 1.0


def deep(path: Path, order: str = "<", negative: bool = False, top: int = 65535) -> None:
    values = plane(path.parent.name, int(path.stem), top)
    sixteen(path, top - values if negative else values, order, negative)


@pytest.mark.extended
@pytest.mark.parametrize("order", ["<", ">"])
def test_white_is_zero_at_16_bits_as_at_8(tmp_path: Path, order: str) -> None:
    """A model learns from ordinary files and is scored on the negatives that say they are: and as two sites."""
    plain = folder(tmp_path / "plain", lambda path: deep(path, order))
    turned = folder(tmp_path / "turned", lambda path: deep(path, order, negative=True))
    assert accuracy([f"images.folder={plain}"], tmp_path) == 1.0
    record = (tmp_path / "note").read_text().strip()
    assert main(["export", record, "--output", str(tmp_path / "out")]) == 0
    assert main(["score", str(tmp_path / "out"), str(turned), "--json", str(tmp_path / "s")]) == 0
    assert json.loads((tmp_path / "s").read_text())["accuracy"] == 1.0


@pytest.mark.extended
def test_12_bits_are_dark_until_one_says_what_is_white(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`nectar data` says which setting to type, and what is typed then gives the values of the full range."""

    def twelve(path: Path) -> None:
        values = plane(path.parent.name, int(path.stem), 4095).astype(np.uint16)
        Image.fromarray(values).save(path)

    place = folder(tmp_path / "set", twelve, ending="png")
    words = [f"images.folder={place}"]
    assert main(["data", *FORM, *words]) == 0
    message = caplog.text
    assert "values are 0 to 16 of 255, less than an eighth of the range" in message
    assert "images.white=4095" in message
    caplog.clear()
    assert main(["data", *FORM, *words, "images.bits=16"]) == 0
    assert "images.white=4095" in caplog.text
    caplog.clear()
    assert main(["data", *FORM, *words, "images.white=4095"]) == 0
    bright = caplog.text
    assert "eighth" not in bright
    assert accuracy([*words, "images.white=4095"], tmp_path) == 1.0
    record = (tmp_path / "note").read_text().strip()
    assert main(["export", record, "--output", str(tmp_path / "out")]) == 0
    assert main(["score", str(tmp_path / "out"), str(place), "--json", str(tmp_path / "s")]) == 0
    assert json.loads((tmp_path / "s").read_text())["accuracy"] == 1.0


# ---- levels in few of the bits -------------------------------------------------------------------

OFFSET = 32768


def scan(path: Path) -> None:
    """Write values of a CT, -1000 to 1000, to which 32768 was added."""
    values = plane(path.parent.name, int(path.stem), 2000) - 1000 + OFFSET
    Image.fromarray(values.astype(np.uint16)).save(path)


@pytest.mark.extended
@pytest.mark.parametrize("bits", [8, 16])
def test_levels_in_the_middle_of_the_range_are_warned_of_until_black_and_white_are_stated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bits: int
) -> None:
    place = folder(tmp_path / "set", scan, ending="png")
    words = [f"images.folder={place}", f"images.bits={bits}"]
    assert main(["data", *FORM, *words]) == 0
    message = caplog.text
    assert "less than an eighth of the range" in message
    advice = re.findall(r"images\.(black|white)=(\d+)", message)
    stated = {name: int(value) for name, value in advice}
    assert OFFSET - 1500 < stated["black"] <= OFFSET - 1000
    assert OFFSET + 999 <= stated["white"] < OFFSET + 1500
    caplog.clear()
    typed = [*words, *(f"images.{name}={value}" for name, value in stated.items())]
    assert accuracy(typed, tmp_path) == 1.0
    assert "eighth" not in caplog.text
    record = (tmp_path / "note").read_text().strip()
    assert main(["export", record, "--output", str(tmp_path / "out")]) == 0
    assert main(["score", str(tmp_path / "out"), str(place), "--json", str(tmp_path / "s")]) == 0
    assert json.loads((tmp_path / "s").read_text())["accuracy"] == 1.0


@pytest.mark.extended
def test_so_of_a_run_and_of_arrays_and_not_of_a_published_set(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = folder(tmp_path / "set", scan, ending="png")
    accuracy([f"images.folder={place}"], tmp_path)
    assert "values are 124 to 131 of 255, less than an eighth" in caplog.text
    images = np.full((40, 12, 12), 100, np.uint8)
    images[::2, :6] += 12
    np.savez(tmp_path / "a.npz", train_images=images, train_labels=np.arange(40) % 2)
    assert main(["data", f"data.file={tmp_path / 'a.npz'}", "federation.sites=2"]) == 0
    assert "values are 100 to 112 of 255, less than an eighth" in caplog.text
    caplog.clear()
    assert main(["data"]) == 0
    assert "eighth" not in caplog.text


def test_what_is_black_scales_and_clips_and_turns_a_negative(tmp_path: Path) -> None:
    def read(path: Path, **form: int) -> list[int]:
        settings = ImagesSettings(size=2, channels=1, bits=16, **form)
        found: list[int] = read_image(path, settings).ravel().tolist()
        return found

    values = np.array([[900, 1000], [2000, 3000]], np.uint16)
    Image.fromarray(values).save(tmp_path / "a.png")
    assert read(tmp_path / "a.png") == [900, 1000, 2000, 3000]
    assert read(tmp_path / "a.png", black=1000, white=2000) == [0, 0, 65535, 65535]
    assert read(tmp_path / "a.png", black=1000, white=3000) == [0, 0, 32768, 65535]
    with pytest.raises(Unreadable, match=r"its white is 1000, not above images.black=2000"):
        read(tmp_path / "a.png", black=2000, white=1000)


@pytest.mark.extended
def test_a_camera_s_mpo_is_read_by_its_ending(tmp_path: Path) -> None:
    def camera(path: Path) -> None:
        first, second = (
            Image.fromarray(plane(kind, int(path.stem), 255).astype(np.uint8))
            for kind in (path.parent.name, "a")
        )
        first.save(path, format="MPO", save_all=True, append_images=[second])

    place = folder(tmp_path / "set", camera, ending="mpo")
    assert accuracy([f"images.folder={place}"], tmp_path) == 1.0
