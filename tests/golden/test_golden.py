"""Golden files: pages, tables and logs of fixed records and figures, as a whole; `pytest --accept` writes them.

The records are two rounds of three sites each: FedAvg, FedDM from noise, and FedAvg with noise. Their checkpoints are
left out, and what sites sent is there.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from comparing import a_run, results_of
from documents import Document, check
from golden import assert_file
from places import ROOT

from nectar.comparison.frame import ROUND, csv_of
from nectar.comparison.request import Axis, Variant
from nectar.comparison.results import Results
from nectar.comparison.tuning import Search, choose
from nectar.records.record import RunRecord
from nectar.report import page as pages
from nectar.report.view import View, groups

HERE = Path(__file__).parent
RECORDS = ("fedavg", "feddm", "private")


@pytest.fixture
def records(tmp_path: Path) -> dict[str, Path]:
    """Return copies of the records, each in a folder of its id."""
    return {name: shutil.copytree(HERE / "records" / name, tmp_path / name) for name in RECORDS}


def plain(text: str, place: Path) -> str:
    """Return what a page says, a line a piece, without this machine's places."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    kept = "\n".join(line for line in lines if line)
    return kept.replace(str(place), "{tmp}").replace(str(ROOT), "{clone}") + "\n"


@pytest.mark.parametrize("shown", [*((name,) for name in RECORDS), RECORDS], ids="-".join)
def test_a_report(
    shown: tuple[str, ...], records: dict[str, Path], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    page = pages.page([View(RunRecord.open(records[name])) for name in shown])
    document = Document(page)
    check(document)
    document = Document(re.sub("<(style|svg).*?</(style|svg)>", "", page, flags=re.DOTALL))
    alternatives = "\n".join(image["alt"] for image in document.all("img"))
    text = plain(f"{document.text}\n{alternatives}", tmp_path)
    assert_file(pytestconfig, HERE / f"report-{'-'.join(shown)}.txt", text)


def test_seeds_stand_together(records: dict[str, Path], tmp_path: Path) -> None:
    other = shutil.copytree(records["fedavg"], tmp_path / "another")
    for name, old in (("config.yaml", "seed: 0"), ("provenance.json", '"seed": 0')):
        text = (other / name).read_text()
        assert old in text
        (other / name).write_text(text.replace(old, old.replace("0", "1")))
    places = (records["fedavg"], other, records["feddm"])
    views = [View(RunRecord.open(place)) for place in places]
    named = {name: len(members) for name, members in groups(views).items()}
    assert named == {"FedAvg": 2, "FedDM": 1}
    document = Document(pages.page(views))
    check(document)
    assert "0: 0.5556, 1: 0.5556" in document.text
    for place in places:
        (place / "config.yaml").unlink()
    (members,) = groups([View(RunRecord.open(place)) for place in places]).values()
    assert len(members) == 3, "of runs without settings none is known to differ"


def compared() -> Results:
    """Rows of runs that are whole, unfinished, rejected in part, audited, and of a row that was searched."""
    whole = a_run(0.5, 0.7)
    axes = (Axis("fedavg.lr", ("0.1", "0.3", "1")), Axis("fedavg.weighting", ("counts", "uniform")))
    search = Search("fedavg", Variant("fedavg", "fedavg"), ("fedavg",), axes)
    scores = [(0.5, 0.6), (0.9, float("nan")), (0.6, 0.7), (0.6, 0.7), (0.8, 0.8), (0.5, 0.5)]
    trials = dict(zip(search.grid(), scores, strict=True))

    def audited(found: float, **more: int) -> RunRecord:
        return a_run(0.5, 0.7, found={"found": found, "false_alarms": 0.01, **more})

    return results_of(
        {
            "fedavg": [whole, a_run(0.8, 0.9)],
            "b|c": [a_run(0.2, 0.3, alone=False), None],
            "unfinished": [whole, a_run(0.8, completed=False)],
            "=rejected_100%": [a_run(0.9, 0.9, rejected=1), a_run(0.1, 0.1)],
            "audited": [audited(0.05), audited(0.03)],
            "audited in part": [audited(0.05, rounds_not_kept=1), None],
            "nothing": [None, None],
        },
        choices=(choose(search, trials, "see their logs"),),
    )


@pytest.mark.parametrize("name", ["table.md", "table.tex", "table.csv", "rounds.csv", "table.txt"])
def test_the_tables_of_a_comparison(name: str, pytestconfig: pytest.Config) -> None:
    results = compared()
    text = {
        "table.md": results.markdown,
        "table.tex": results.latex,
        "table.csv": results.csv,
        "rounds.csv": lambda: csv_of(results.by_round, ROUND),
        "table.txt": lambda: results.table,
    }[name]()
    assert_file(pytestconfig, HERE / name, f"{text.rstrip()}\n")


def test_a_row_that_was_not_audited_has_no_column_of_what_was_found() -> None:
    assert "found" not in results_of({"a": [a_run(0.2, 0.3)]}).markdown().lower()


def test_what_a_record_says_the_report_goes_by(records: dict[str, Path]) -> None:
    """Of a method that nobody knows it says so, and privacy is what the record states."""
    path = records["feddm"] / "provenance.json"
    stated = json.loads(path.read_text())
    stated["privacy"]["began_as"] = "real examples"
    path.write_text(json.dumps(stated))
    assert (
        "do not treat them as private"
        in Document(pages.page([View(RunRecord.open(records["feddm"]))])).text
    )
    path = records["private"] / "metrics.jsonl"
    path.write_text(path.read_text().replace('"seeded": false', '"seeded": true'))
    page = Document(pages.page([View(RunRecord.open(records["private"]))]))
    assert "Not differentially private: the noise was drawn" in page.text, "as in a simulation"
    for name in ("config.yaml", "provenance.json"):
        path = records["fedavg"] / name
        path.write_text(path.read_text().replace("fedavg", "fedzzz"))
    view = View(RunRecord.open(records["fedavg"]))
    assert view.facts is None
    assert "The report knows nothing about fedzzz" in Document(pages.page([view])).text
