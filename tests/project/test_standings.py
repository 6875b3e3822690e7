"""benchmarks/standings.py: what it takes up, keeps and writes; and that each page stands as its CSV has it."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import pytest
from federation import run
from matplotlib.text import Text
from small import SMALL

from benchmarks.named_points import Point, chart
from benchmarks.standings import (
    BEGIN,
    END,
    FILE,
    Run,
    as_csv,
    curve_csv,
    curve_of,
    draw,
    merged,
    page,
    read,
    sends_real,
    taken_up,
    use_of,
    worth,
)
from common.config.loading import load
from common.errors import ConfigError
from nectar.arguments import parse_arguments
from nectar.records.record import RunRecord

of_cifar10 = partial(worth, curve=curve_of("cifar10"))

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"

TABLE = """variant,seed,completed,accuracy,bytes_up,found,false_alarms,seconds_devices
a,3,true,0.5,2500000,0.25,0.01,12.5
a,4,true,0.7,1500049,,,
b,3,false,0.1,1,,,
"""


def test_a_comparisons_completed_runs_are_taken_up_and_what_was_not_measured_stays_empty(
    tmp_path: Path,
) -> None:
    (tmp_path / "table.csv").write_text(TABLE)
    runs = list(taken_up("once", tmp_path))
    (tmp_path / "once.csv").write_text(as_csv(runs))
    assert str(read(tmp_path / "once.csv")) == str(runs), "a page is the same from either"
    assert runs[0] == Run("once", "a", 3, 0.5, 2.5, 12.5, 0.25, 0.01)
    assert [run.row for run in runs] == ["a", "a"]
    assert all(math.isnan(x) for x in (runs[1].seconds, runs[1].found, runs[1].alarms))
    assert as_csv(runs).splitlines()[1:] == [
        "once,a,3,0.5,2.5,12.5,0.25,0.01",
        "once,a,4,0.7,1.5,,,",
    ]


def test_a_new_run_replaces_that_of_its_row_and_seed_and_no_other() -> None:
    old = [
        Run("once", "a", 4, 0.1, 1.0),
        Run("once", "b", 3, 0.2, 1.0),
        Run("then", "a", 4, 0.3, 1.0),
    ]
    new = [Run("once", "a", 4, 0.9, 1.0), Run("once", "a", 3, 0.8, 1.0)]
    assert [(r.group, r.row, r.seed, r.accuracy) for r in merged(old, new)] == [
        ("once", "a", 3, 0.8),
        ("once", "a", 4, 0.9),
        ("once", "b", 3, 0.2),
        ("then", "a", 4, 0.3),
    ]


def test_the_mean_its_deviation_and_every_seed_stand_in_the_table() -> None:
    runs = [
        Run("once", "a", s, a, 2.0, found=f, alarms=0.02)
        for s, a, f in ((3, 0.5, 0.1), (4, 0.7, math.nan))
    ]
    text = page(f"before\n{BEGIN}\nold\n{END}\nafter\n", runs)
    cells = f"0.6000&nbsp;±&nbsp;0.1414 | {of_cifar10(0.6) or '–'} | – | 0.5000  0.7000"
    assert f"| a | {cells} | 2 | – | 10.0 % (2.0) |" in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert page(text, runs) == text
    with pytest.raises(ConfigError, match="no place for the tables"):
        page("nothing", runs)


def test_a_leaderboard_has_a_row_a_method_the_best_first_and_its_own_columns(
    tmp_path: Path,
) -> None:
    methods = {"tuned": "fedavg"}
    about = {"real": "no", "commit": "c", "date": "2026-01-02", "hardware": "h"}
    runs = [
        Run(
            "digits",
            row,
            s,
            a,
            2.0,
            epsilon=e,
            method=methods.get(row, row),
            chosen=chosen,
            labelled="144 †" if chosen else "",
            **about,
        )
        for row, s, a, e, chosen in (
            ("tuned", 0, 0.5, math.nan, "lr=0.3"),
            ("tuned", 1, 0.7, math.nan, "lr=0.3"),
            ("scaffold", 0, 0.9, 3.0, ""),
            ("local", 0, 0.2, math.nan, ""),
        )
    ]
    text = page(f"{BEGIN}{END}", runs)
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    of_digits = partial(worth, curve=curve_of("digits"))
    assert rows[0] == f"| scaffold, seed 0 | 0.900 | {of_digits(0.9)} | 2 | none | – |"
    cells = f"0.600&nbsp;±&nbsp;0.141 | {of_digits(0.6)} | 2 | for settings | –"
    assert rows[1] == f"| tuned (`fedavg`) | {cells} |"
    assert "Seeds 0, 1. Code of c; 2026-01-02; h." in text
    (tmp_path / "leaderboard.csv").write_text(as_csv(runs))
    assert page(text, read(tmp_path / "leaderboard.csv")) == text
    draw(runs, tmp_path, "leaderboard")
    plot = (tmp_path / "leaderboard-digits.svg").read_text()
    assert ">scaffold<" in plot
    assert ">tuned<" not in plot  # no method's name, and as many bytes for less
    assert ">local<" in plot


@pytest.mark.parametrize(
    ("labelled", "said"),
    [
        ("", "none"),
        ("0", "none"),
        ("144", "144, to learn from"),
        ("500 †", "for settings"),
        ("0 †", "for settings"),
    ],
)
def test_what_the_servers_labels_were_for_is_said(labelled: str, said: str) -> None:
    assert use_of(labelled) == said


def test_what_a_leaderboard_says_of_a_run_is_its_records(tmp_path: Path) -> None:
    record = run({"method": "fedavg", "rounds": 1, "output-dir": str(tmp_path), "set": SMALL})
    (tmp_path / "table.csv").write_text(
        f"variant,seed,completed,accuracy,bytes_up,found,false_alarms,seconds_devices,record\n"
        f"fedavg,0,true,0.5,1000,,,,{record.directory}\n"
    )
    asked = {"command": "nectar compare table=leaderboard digits", "searches": []}
    (tmp_path / "compare.json").write_text(json.dumps(asked))
    (found,) = taken_up("digits", tmp_path, about=True)
    assert (found.method, found.real) == ("fedavg", "no")
    assert found.chosen == "lr=0.3 epochs=40 batch=64"
    assert math.isnan(found.epsilon)
    assert found.date == RunRecord.open(record.directory).provenance["started"][:10]
    assert found.commit
    assert found.labelled == "144"
    assert "cores of" in found.hardware


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fedavg", "no"),
        ("central", "no"),
        ("real", "yes"),
        ("fedmix", "means of it"),
        ("feddm", "no"),
        ("feddm feddm.start=mean", "means of it"),
        ("feddm feddm.start=mix:4", "begun from it"),
        ("feddm feddm.start=real feddm.iterations=0", "yes"),
        ("fedssyn fedssyn.source=distilled feddm.start=real", "begun from it"),
    ],
)
def test_whether_real_data_is_sent_goes_by_what_is_disclosed(words: str, said: str) -> None:
    assert sends_real(load(parse_arguments(words.split()))) == said


def test_the_curve_takes_up_a_comparison_of_numbers_of_images(tmp_path: Path) -> None:
    """What the file has of other places stays; images are in the order of their number."""
    words = f"{SMALL} partition.min_size=1 data.validation=0.5 data.images="
    lines = ["variant,seed,completed,accuracy,record"]
    for images in (100, 20):
        settings = {"method": "server", "rounds": 1, "output-dir": str(tmp_path)}
        record = run(settings | {"set": f"{words}{2 * images}"})
        assert record.metrics()[1]["notes"]["trained_on"] == images
        lines.append(f"{images},9,true,0.{images},{record.directory}")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    head, *old = FILE.read_text().splitlines()
    written = curve_csv([tmp_path]).splitlines()
    assert written[0] == head
    assert set(old) <= set(written)
    new = [line.split(",")[1:] for line in written[1:] if line not in old]
    assert new == [["20", "9", "0.2000"], ["100", "9", "0.1000"]]


@pytest.mark.extended
def test_the_names_of_a_crowd_are_all_there_and_clear_of_each_other() -> None:
    points = [
        Point(f"row {i}", "ab"[i % 2], 2.0 + i // 12, 0.4 + 0.001 * i, 0.3, 0.5) for i in range(24)
    ]
    figure = chart(points, ["c", "a", "b"], x_label="x", y_label="y", log_x=True, levels={})
    (axes,) = figure.axes
    assert {text.get_text() for text in axes.texts} == {point.name for point in points}
    boxes = [Text.get_window_extent(text) for text in axes.texts if text.get_window_extent()]
    for i, box in enumerate(boxes):
        assert not box.shrunk(0.98, 0.98).count_overlaps(boxes[:i] + boxes[i + 1 :])
        assert axes.bbox.contains(*box.min)
        assert axes.bbox.contains(*box.max)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]


@pytest.mark.parametrize(
    "name", sorted(p.stem for p in RESULTS.glob("*.md") if BEGIN in p.read_text())
)
def test_a_page_stands_as_its_csv_has_it(name: str) -> None:
    text = (RESULTS / f"{name}.md").read_text()
    assert page(text, read(RESULTS / f"{name}.csv")) == text
