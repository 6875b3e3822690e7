"""`nectar data`: what it prints, what it draws, what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from data_files import forget_loaded
from image_folders import CLASSES, COLOURS, paint_split
from PIL import Image

from common.division import Division
from common.errors import DataError
from nectar import cli
from nectar.arguments import parse_arguments, resolved, with_fitting_sites
from nectar.dataset.account import Holdings, draw_counts

WORDS = ["data", "dataset=images", f"images.classes={CLASSES}", "images.size=8"]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget_loaded(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NECTAR_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


def said(capfd: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert cli.main(list(words)) == code
    captured = capfd.readouterr()
    return captured.err if code else captured.out


@pytest.mark.extended
def test_the_digits_and_their_pictures(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = said(capfd, "data", "--draw", "c.png,c.svg", "--samples=s.png")
    assert "training  1,437 images" in text
    first = (tmp_path / "c.svg").read_bytes()
    assert first.count(b"<text") > 60, "a number in every cell"
    for name in ("c.png", "s.png"):
        assert Image.open(tmp_path / name).size > (300, 300)
    said(capfd, "data", "--draw", "c.svg")
    assert (tmp_path / "c.svg").read_bytes() == first


def test_the_samples_are_rows_of_their_class(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    paint_split(tmp_path / "data/set", train=12, test=1)
    said(
        capfd, *WORDS, "images.folder=set", "federation.sites=2", "partition.min_size=1",
        "--samples", "s.png",
    )  # fmt: skip
    picture = np.asarray(Image.open(tmp_path / "s.png").convert("RGB")).astype(int)
    height, width = picture.shape[:2]
    for row, colour in enumerate(COLOURS.values()):
        band = picture[height * row // 3 + 5 : height * (row + 1) // 3 - 5, width // 2 :]
        assert band.mean(axis=(0, 1)).argmax() == np.argmax(colour)


def test_cells_darken_with_the_number_and_many_sites_have_no_numbers() -> None:
    counts = np.array([[4, 16], [0, 1]])
    figure = draw_counts(Holdings(("a", "b$"), ("x", "y"), counts), "t")
    (image,) = figure.axes[0].images
    np.testing.assert_allclose(np.asarray(image.get_array()) ** 2, counts.T)
    red, green, blue, _ = image.to_rgba(image.get_array())[1, 0]  # type: ignore[index]
    assert 0.2 * red + 0.7 * green + 0.1 * blue > 0.5, "a dark number is read on the darkest cell"
    assert sorted(text.get_text() for text in figure.axes[0].texts) == ["1", "16", "4"]
    many = draw_counts(
        Holdings(tuple(f"partition-{i}" for i in range(100)), ("x", "y"), np.ones((100, 2), int)),
        "t",
    )
    assert not many.axes[0].texts


# ---- sites that fit ------------------------------------------------------------------------------

SMALL_FOLDER = (*WORDS, "images.folder=set")


@pytest.mark.parametrize(
    ("rule", "fitting"),
    [
        ("kind=dirichlet", 4),
        ("kind=dirichlet min_size=20", 2),
        ("kind=quantity", 4),
        ("kind=dirichlet_groups", 4),
        ("kind=shards shards_per_client=7", 6),
        ("kind=natural", 3),
    ],
)
def test_an_own_set_gets_as_many_sites_as_it_allows(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], rule: str, fitting: int
) -> None:
    folder = paint_split(tmp_path / "data/set", train=16, test=4)
    for place, file in enumerate(sorted(folder.rglob("*.png")) if "natural" in rule else ()):
        group = "z" if "test" in file.parts else "abc"[place % 3]
        file.rename(file.with_name(f"{group}_{file.name}"))
    words = (*SMALL_FOLDER, *(f"partition.{word}" for word in rule.split()))
    words += ("images.group={group}_*",) if "natural" in rule else ()
    config = resolved(parse_arguments(list(words[1:])))
    found = with_fitting_sites(config)
    assert found.federation.sites == fitting < config.federation.sites
    assert found.origin["federation.sites"] == "the data"
    text = said(capfd, *words)
    assert f"{fitting} sites (" in text
    with pytest.raises(DataError) as refused:
        Division(config).partition(fitting + 1)
    assert "client" not in str(refused.value).replace("shards_per_client", "")


@pytest.mark.parametrize(
    "more",
    [
        ["federation.sites=9"],
        ["partition.min_size=30"],
        ["method=fedavg", "privacy.noise_multiplier=1", "privacy.examples=140"],
        ["federation.min_replies=5"],
    ],
)
def test_what_no_division_serves_is_drawn_before_it_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], more: list[str]
) -> None:
    paint_split(tmp_path / "data/set", train=16, test=4)
    error = said(capfd, *SMALL_FOLDER, *more, "--draw=c.png", "--samples=s.png", code=2)
    sites = 9 if "federation.sites=9" in more else 10
    assert f"nectar: {sites} sites with partition.min_size=" in error
    assert "as many as the data allow" not in error
    assert Image.open(tmp_path / "c.png").size > (100, 100)
    assert Image.open(tmp_path / "s.png").size > (100, 100)


def test_a_run_has_as_many_sites_as_its_data_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paint_split(tmp_path / "data/set", train=16, test=4)
    monkeypatch.setenv("NECTAR_RUNS", str(tmp_path / "runs"))
    words = ["fedavg", "images.classes=" + CLASSES, "images.size=8", "images.folder=set"]
    words += ["rounds=1", "fedavg.epochs=1", "model.width=4", "model.depth=1", "compute.workers=1"]
    assert cli.main(["run", *words]) == 0
    record = next((tmp_path / "runs").iterdir())
    assert "sites: 4" in (record / "config.yaml").read_text()
