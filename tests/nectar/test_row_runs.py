"""Runs on a table and on series: every method that takes them, their record, their report, and `nectar data`."""

from __future__ import annotations

import csv
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from documents import check, written
from federation import last, run
from places import ROOT
from row_sets import QUICK, table, waves
from sklearn.datasets import load_breast_cancer, load_wine
from tiers import FEDAVG_VARIANTS, only_these_first

from common.config.loading import load
from common.division import Division
from common.errors import ConfigError, NectarError
from common.methods import METHODS
from nectar import cli
from nectar.audit.images.at_record import audit_record
from nectar.engines import preflight
from nectar.recorded_run import RecordedRun
from nectar.records.record import RunRecord
from server_app.record import Record

pytestmark = pytest.mark.usefixtures("fresh_cache")

MAKE = {"table": (table, "own.csv"), "series": (waves, "own.npz")}
TAKING = [name for name, method in METHODS.items() if "table" in method.takes]


def words(kind: str, folder: Path) -> str:
    make, name = MAKE[kind]
    return f"{make(folder / name)} {QUICK}"


def learned(kind: str, folder: Path, method: str, more: str = "", rounds: int = 1) -> Record:
    where = {"output-dir": str(folder / "runs"), "data-dir": str(folder / "data")}
    return run(
        {**where, "method": method, "rounds": rounds, "set": f"{words(kind, folder)} {more}"}
    )


@pytest.mark.sweep
@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize(
    "method", only_these_first(TAKING, "feddm", "fedsynth", long=FEDAVG_VARIANTS)
)
def test_a_method_that_takes_them_learns_from_them(tmp_path: Path, kind: str, method: str) -> None:
    alone = (
        "privacy.noise_multiplier=1" if method == "ridge" else ""
    )  # of classes this small, plain sums do not leave
    record = learned(kind, tmp_path, method, alone)
    line = record.metrics()[-1]
    at_sites = line["test"] is None  # where models of their own are judged
    judged = line["sites" if at_sites else "test"]
    assert at_sites or judged["examples"] == 12
    assert np.isfinite(judged["loss"])
    assert not line["rejected"]
    assert all(torch.isfinite(t).all() for t in last(record).weights.values())


@pytest.mark.extended
@pytest.mark.parametrize("kind", MAKE)
def test_a_record_has_what_was_sent_as_a_table_and_the_report_as_tables_and_curves(
    tmp_path: Path, kind: str
) -> None:
    record = learned(kind, tmp_path, "feddm")
    sets = RunRecord.open(record.directory).synthetic()[1]
    folder = record.directory / "samples" / "round-001"
    assert {path.name for path in folder.iterdir()} == {f"{site}.csv" for site in sets}
    for site, sent in sets.items():
        with (folder / f"{site}.csv").open(newline="") as file:
            head, *lines = csv.reader(file)
        values = np.array([[float(cell) for cell in line[1:]] for line in lines])
        given = sent.images.flatten(1).double().numpy()
        if kind == "table":
            assert head == ["class", "small", "wide", "'=large"]
            ends = np.array([5, 500, 1000]) / 2
            given = given * ends + ends
        else:
            assert head[:3] == ["class", "1[0]", "1[1]"]
            assert head[-1] == "2[15]"
        np.testing.assert_allclose(values, given, rtol=1e-5, atol=1e-5)
        assert [line[0] for line in lines] == ["abc"[label] for label in sent.labels]
    page = written(record)
    check(page)
    assert not page.all("img")
    assert "The nearest" not in page.text
    curves = [svg for svg in page.all("svg") if svg["aria-label"].endswith("by class and channel")]
    assert len(curves) == (3 if kind == "series" else 0)
    assert ("=large" in page.text) == (kind == "table")


def test_what_is_made_of_pictures_is_refused_in_a_sentence(tmp_path: Path) -> None:
    record = learned("table", tmp_path, "feddm")
    with pytest.raises(ConfigError, match="is a run on a table: there are no images to audit"):
        audit_record(record.directory)
    with pytest.raises(ConfigError, match="which has no pictures: `images` has what was sent"):
        _ = RecordedRun.open(record.directory).pictures


@pytest.mark.extended
def test_an_export_has_the_rows_that_were_sent_in_raw_values(tmp_path: Path) -> None:
    record = learned("table", tmp_path, "feddm")
    assert cli.main(["export", str(record.directory), "--output", str(tmp_path / "out")]) == 0
    sets = RunRecord.open(record.directory).synthetic()[1]
    head, *lines = (tmp_path / "out" / "synthetic" / "rows.csv").read_text("utf-8").splitlines()
    assert head.startswith("class,")
    assert len(lines) == sum(len(sent.labels) for sent in sets.values())
    assert "rows.csv" in (tmp_path / "out" / "README.md").read_text("utf-8")


@pytest.mark.extended
def test_private_matching_stays_within_the_stated_bounds(tmp_path: Path) -> None:
    more = (
        "feddm.mechanism=feature privacy.noise_multiplier=1 privacy.counts=public "
        "feddm.image_lr=1000 data.validation=0"
    )
    record = learned("table", tmp_path, "feddm", more)
    sets = RunRecord.open(record.directory).synthetic()[1]
    largest = max(float(sent.images.abs().max()) for sent in sets.values())
    assert largest <= 1 + 1e-6, "minmax brings the bounds to -1 and 1"


def test_a_row_beyond_belief_is_left_out(tmp_path: Path) -> None:
    """One of a value that no column has decides what the server learns: its site is left out."""
    more = "feddm.image_lr=1e7 feddm.start=noise federation.max_pixel=2"
    with pytest.raises(NectarError, match=r"fewer|replies|federation.max_pixel"):
        learned("table", tmp_path, "feddm", more)


# ---- the commands


def said(capfd: pytest.CaptureFixture[str], *given: str, code: int = 0) -> str:
    assert cli.main(list(given)) == code
    captured = capfd.readouterr()
    return captured.err if code else captured.out


@pytest.mark.sweep
@pytest.mark.parametrize("kind", MAKE)
def test_data_says_what_the_columns_hold_and_shows_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["data", *words(kind, tmp_path).split(), f"data-dir={tmp_path / 'data'}"]
    shown = "rows.csv" if kind == "table" else "curves.svg"
    text = " ".join(said(capfd, *given, "--samples", shown, "--draw", "counts.svg").split())
    assert {"table": "rows 3 columns", "series": "series 2 channels, 16 steps"}[kind] in text
    assert "classes 3: a, b, c" in text
    assert "(a run computes none of it: state data.low and data.high" in text
    assert ("=large 0.0" in text) == (kind == "table")
    content = (tmp_path / shown).read_text()
    if kind == "table":
        assert content.startswith("class,small,wide,'=large\na,")
        assert content.count("\n") == 31
    else:
        assert content.count("<path") > 60, "ten curves of three classes and two channels"
    assert "choose " in said(capfd, *given, "--samples", "rows.png", code=2)


def test_the_command_prints_a_line_a_method(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["methods"]) == 0
    told = capsys.readouterr()
    assert "`nectar methods` is `nectar config --help` now" in told.err
    table = told.out.partition("Methods:\n")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in table.splitlines()] == ["method", *METHODS]


def test_the_sets_that_the_example_makes_are_ones_that_can_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "own_tables.py"))
    given, sites = {"data-dir": str(tmp_path / "data")}, "federation.sites=5"
    for name, columns in (("cancer", 30), ("wine", 13)):
        config = load({**given, "config": str(tmp_path / f"{name}.yaml"), "set": sites})
        preflight.check(config)
        info = Division(config).run.info
        assert (info.shape, info.largest) == ((columns, 1, 1), pytest.approx(1))
        data = (load_breast_cancer if name == "cancer" else load_wine)()
        inside = (data.data >= np.array(info.low)) & (data.data <= np.array(info.high))
        assert inside.mean() > 0.99, "the published ranges are rounded"
    waves_there = f"data.file={tmp_path / 'waves.npz'} data.kind=series {sites}"
    preflight.check(load({**given, "set": waves_there}))
