"""A comparison over a grid: what is asked, what one cell costs the others, its pivot, its files, and a dry run."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from comparing import a_run, options_of, results_of
from federation import run
from golden import assert_file
from pandas import DataFrame
from places import ROOT
from small import SMALL, Small

from nectar.cli import main
from nectar.comparison import scheduler as scheduling
from nectar.comparison.comparison import Comparison
from nectar.comparison.paper_table import Number, PaperTable, Printed
from nectar.comparison.request import Axis, Cell, CompareOptions, ComparisonRequest, Variant, parse
from nectar.comparison.results import Results, of_cells, pivot
from nectar.comparison.tables import Table
from nectar.records.record import RunRecord
from nectar.text import size
from server_app.record import Record

GOLDEN = ROOT / "tests" / "golden"
ALPHA, SETS = Axis("partition.alpha", ("0.1", "1")), Axis("dataset", ("digits", "mnist"))


def request(*words: str) -> ComparisonRequest:
    return parse(options_of(words))


def grid(tmp_path: Path, *words: str, say: Callable[[str], None] = lambda said: None) -> Any:
    shared = [f"output-dir={tmp_path / 'runs'}", "rounds=2", "--seeds=1", *SMALL.split()]
    return Comparison(request(*words, *shared), say)


@pytest.fixture
def _no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a run would be started that should have been found."""
    monkeypatch.setattr(scheduling, "_start", None)


# -- what is asked ------------------------------------------------------------------------------


def test_each_combination_is_a_comparison_and_the_last_axis_is_fastest() -> None:
    asked_for = request(
        "feddm", "fedavg", "rounds=3", "--grid=partition.alpha=0.1,1", "--grid=dataset=digits,mnist"
    )
    assert [cell.label for cell in asked_for.cells] == [
        "alpha=0.1 dataset=digits",
        "alpha=0.1 dataset=mnist",
        "alpha=1 dataset=digits",
        "alpha=1 dataset=mnist",
    ]
    first = asked_for.cells[0]
    assert first.words(first.variants[1], 4) == [
        *("rounds=3", "partition.alpha=0.1", "dataset=digits", "method=fedavg", "seed=4")
    ]


def test_a_row_may_have_its_own_data_set_and_rounds() -> None:
    (asked_for,) = request("long=feddm:rounds=9,dataset=mnist", "feddm", "rounds=3").cells
    mine, other = asked_for.variants
    assert asked_for.words(mine, 0) == ["method=feddm", "rounds=9", "dataset=mnist", "seed=0"]
    assert asked_for.words(other, 0) == ["rounds=3", "method=feddm", "seed=0"]


# -- what it comes to ---------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.usefixtures("_no_children")
def test_rows_of_other_lengths_stand_in_one_table(small: Small, tmp_path: Path) -> None:
    short, long = (run(small(method="fedavg", rounds=n)) for n in (1, 2))
    words = [
        "fedavg",
        "short=fedavg:rounds=1",
        f"output-dir={tmp_path / 'runs'}",
        "rounds=2",
        *SMALL.split(),
    ]
    comparison = Comparison(request(*words, "--seeds=1", f"--output={tmp_path / 'out'}"), print)
    results = comparison.carry_out()
    assert list(results.summary["mean"]) == [
        record.metrics()[-1]["test"]["accuracy"] for record in (long, short)
    ]
    assert results.title.endswith("2 rounds or 1 round")
    assert "Accuracy after the row's last round" in (tmp_path / "out" / "table.md").read_text()


@pytest.mark.extended
@pytest.mark.usefixtures("_no_children")
def test_a_cell_that_cannot_be_had_costs_that_cell_alone(small: Small, tmp_path: Path) -> None:
    """No three sites can have 1,000 of 1,293 images each."""
    records = {
        name: run(small(method=name, set="partition.min_size=5")) for name in ("fedavg", "feddm")
    }
    message: list[str] = []
    out = tmp_path / "out"
    words = ("fedavg", "feddm", "--grid=partition.min_size=5,1000", f"--output={out}")
    results = grid(tmp_path, *words, say=message.append).carry_out()
    assert any(each.startswith("min_size=1000 is left out: ") for each in message)
    (failure,) = results.failures
    assert failure.startswith("min_size=1000: ")
    finals = {n: f"{r.metrics()[2]['test']['accuracy']:.4f}" for n, r in records.items()}
    assert pivot(results).cells.to_numpy().tolist() == [
        [finals["fedavg"], "–?"],
        [finals["feddm"], "–?"],
    ]
    with (out / "table.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["partition.min_size"], line["row"]) for line in lines] == [
        ("5", "fedavg"),
        ("5", "feddm"),
    ]
    assert [line["record"] for line in lines] == [str(r.directory) for r in records.values()]
    assert "Failed: min_size=1000" in (out / "table.md").read_text()
    cell = {path.name for path in (out / "min_size=5").iterdir()}
    assert {
        "table.md",
        "table.tex",
        "compare.json",
        "accuracy-rounds.pdf",
        "accuracy-seeds.svg",
    } <= cell
    assert {path.name for path in out.iterdir()} == {
        "table.md", "table.tex", "table.csv", "min_size=5",
        "accuracy-partition.min_size.svg", "accuracy-partition.min_size.png", "accuracy-partition.min_size.pdf",
    }  # fmt: skip


def results(
    values: dict[tuple[str, ...], dict[str, tuple[float, ...]]],
    axes: tuple[Axis, ...] = (ALPHA, SETS),
) -> Results:
    """What a grid came to: each value is the accuracy of a seed, by cell and row."""
    cells: dict[Cell, Results | str] = {}
    for pair, rows in values.items():
        label = " ".join(f"{a.name}={v}" for a, v in zip(axes, pair, strict=True))
        variants = tuple(Variant(name, "fedavg") for name in rows)
        cell = Cell(CompareOptions(()), variants, (), range(2), label=label, values=pair)
        cells[cell] = results_of({row: [a_run(v) for v in own] for row, own in rows.items()}, 1)
    return of_cells("t", "nectar compare a_b", Path("out"), cells, axes)


FOUR = {
    ("0.1", "digits"): {"a_b": (0.5, 0.7), "100%": (0.25, 0.25)},
    ("0.1", "mnist"): {"a_b": (0.5, 0.5), "100%": (0.75, 0.75)},
    ("1", "digits"): {"a_b": (0.5,), "100%": (0.5,)},
    ("1", "mnist"): {"a_b": (0.5,), "100%": (0.25,)},
}


def test_the_pivot_for_latex_has_a_line_of_heads_for_each_axis_and_the_best_in_bold(
    pytestconfig: pytest.Config,
) -> None:
    text = "".join(each.latex() for each in (results(FOUR), paper_of(24), paper_of(0)))
    assert_file(pytestconfig, GOLDEN / "pivot.tex", text)


def latex_of(header: tuple[str, ...], *rows: tuple[str, ...]) -> str:
    cells = DataFrame([row[1:] for row in rows], columns=header[1:], index=[row[0] for row in rows])
    table = Table("cap\ntion", cells.rename_axis(header[0]))
    return "\n".join(table.latex()) + "\n"


def test_no_label_breaks_latex() -> None:
    """Every character that LaTeX takes for a command of its own is set as it is, and a line end opens no line."""
    text = latex_of(("x", "y"), ("a", "\\~^&%$#_{}<>"))
    assert r"\textbackslash{}\textasciitilde{}\textasciicircum{}\&\%\$\#\_\{\}$<$$>$ \\" in text
    commands = [line for line in text.splitlines() if line and not line.startswith("%")]
    assert commands[0] == r"\begin{table}[htbp]"
    assert commands[2] == r"\caption{cap tion}"
    assert commands[-1] == r"\end{table}"
    rows = latex_of(("x", "y"), ("[2] x", "1"), ("* y | z", "2")).splitlines()
    assert r"{[}2] x & 1 \\" in rows, "no option of the line before"
    assert r"{*} y \textbar{} z & 2 \\" in rows


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX is installed")
@pytest.mark.extended
def test_latex_takes_it(tmp_path: Path) -> None:
    odd = latex_of(("x", "y"), ("[x] Köln", "* 2 × −1"), ("* | “q” …", "\\~^&%$#_{}<>±–"))
    long = latex_of(("x", "y"), *[("a", "b" * 200)] * 150)
    column = results_of({f"a method of {n} words": [a_run(*[0.5] * 30)] * 9 for n in range(5)}, 30)
    written = "".join(each.latex() for each in (results(FOUR), column, paper_of(60), paper_of(0)))
    (tmp_path / "table.tex").write_text(written + odd + long, encoding="utf-8")
    packages = "\\usepackage{booktabs,graphicx}"
    (tmp_path / "page.tex").write_text(
        f"\\documentclass{{article}}{packages}\\begin{{document}}\\input{{table}}\\end{{document}}\n"
    )
    line = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    subprocess.run(line, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    told = (tmp_path / "page.log").read_text("utf-8", errors="replace")
    assert not re.findall(r"Overfull|Float too large|undefined", told)


def paper_of(numbers: int) -> Results:
    """A table of 12 columns, of which a paper prints so many numbers or none."""
    names = [f"cifar10-alpha{n}" for n in range(12)]
    rows = [f"row {n}" for n in range(max(2, numbers // 12))]
    of_columns = {name: {row: Number("69.66 ± 0.13", 69.66) for row in rows} for name in names}
    printed = (Printed("Table 1", "accuracy", "", {}, of_columns),) if numbers else ()
    column = results_of({row: [a_run(0.5, 0.6), a_run(0.5, 0.7), None] for row in rows})
    ours = {**dict.fromkeys(names, column), "last": results_of({"row 1": [a_run(0.25)]})}
    paper = PaperTable("t", "t", dict.fromkeys(ours, ""), (), printed)
    cells = {Cell(CompareOptions(()), (), (), range(2), label=n): own for n, own in ours.items()}
    return of_cells("t", "nectar compare table=t", Path("out"), cells, paper=paper)


def test_a_table_without_printed_numbers_is_rows_by_columns(pytestconfig: pytest.Config) -> None:
    """The last column has rows of its own, and a terminal 120 columns."""
    found = paper_of(0)
    assert_file(pytestconfig, GOLDEN / "paper.md", found.markdown())
    assert max(map(len, found.table.splitlines())) <= 120
    heads = [line for line in found.table.splitlines() if line.startswith("method ")]
    assert " ".join(heads).split().count("cifar10-alpha3") == 1


def test_a_wide_pivot_comes_in_pieces_of_120_columns() -> None:
    wide = Axis("dataset", tuple(f"a-rather-long-name-{i}" for i in range(9)))
    text = results({(value,): {"a": (0.5,)} for value in wide.values}, (wide,)).table
    assert max(map(len, text.splitlines())) <= 120
    assert all(text.count(value) == 1 for value in wide.values)


# -- a dry run ----------------------------------------------------------------------------------


@pytest.fixture
def planned(small: Small, _no_children: None) -> tuple[Record, list[str]]:
    """Return a record, and the words of comparisons that find it."""
    record = run(small(method="fedavg", rounds=2, set="partition.min_size=5"))
    words = f"fedavg real output-dir={record.directory.parent} rounds=2 --seeds 2 --jobs 1 {SMALL}"
    return record, words.split()


def test_a_dry_run_says_what_is_there_and_counts_the_rest(
    planned: tuple[Record, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    record, words = planned
    before = {path: path.stat().st_mtime_ns for path in record.directory.parent.rglob("*")}
    assert main(["compare", *words, "--grid", "partition.min_size=5,6", "--dry-run"]) == 0
    message = capsys.readouterr().out
    for line in (
        f"min_size=5: fedavg, seed 0: cached ({record.id})\n",
        "min_size=6: fedavg, seed 1: to be run\n",
        "8 runs: 1 cached, 7 to do\n7 runs to do, 14 rounds in all.\n",
        f"The records of 3 take about {size(3 * RunRecord(record.directory).size)}, as others",
    ):
        assert line in message
    after = {path: path.stat().st_mtime_ns for path in record.directory.parent.rglob("*")}
    assert after == before


def test_a_dry_run_counts_what_a_search_tries_and_goes_on_with_no_other_division(
    planned: tuple[Record, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    record, words = planned
    record.note(outcome="interrupted")
    assert main(["compare", *words, "--dry-run"]) == 0
    assert f"goes on ({record.id})" not in capsys.readouterr().out, "another division's"
    searched = ["--tune", "real.ipc=1,2,3", "--tune-seeds=1"]
    assert main(["compare", *words, *searched, "--dry-run"]) == 0
    message = capsys.readouterr().out
    assert "search for real: 3 runs, 0 cached\n" in message
    assert "7 runs: 0 cached, 7 to do" in message


def test_a_dry_run_without_a_data_set_says_what_it_would_have_been(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", "table=feddgm-2", f"data-dir={tmp_path}", f"output-dir={tmp_path}"]
    assert main([*words, "fedavg", "--dry-run"]) == 1
    *left_out, last = capsys.readouterr().out.splitlines()
    assert all(" is left out: there is no folder " in line for line in left_out)
    assert last == f"{3 * len(left_out)} runs of the columns left out are not counted."
    assert main([*words, "fedavg"]) == 2
    assert main([*words, "fedavgg", "--dry-run"]) == 2
