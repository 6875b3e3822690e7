"""Tables of sites' own: what fits the columns that the run names, what does not, and what each is told."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import Small

from client_app.app import app as client_app
from client_app.site import _require_columns_of_run
from client_app.state import DirectoryState
from common.config.loading import load
from common.data.loading import clear_cache, load_site
from common.division import Division
from common.errors import DataError, FederationError
from nectar.cli import main
from nectar.engines.local_grid import LocalGrid
from nectar.records.record import RunRecord
from server_app.app import serve
from server_app.record import Record

pytestmark = pytest.mark.usefixtures("fresh_cache")

HEAD = ["age", "region", "dose", "outcome"]
COLUMNS = "'data.columns=age,dose,region:north|south' data.label=outcome images.classes=ill,well"
SCALE = "data.scale=minmax data.low=0 data.high=100"
HELD_OUT = "evaluation.on=sites data.site_holdout=0.2"
TEXT = f"{COLUMNS} {SCALE} {HELD_OUT}"


def rows(count: int, seed: int = 0) -> list[list[str]]:
    """Return rows in which the outcome follows from age and region."""
    rng = np.random.default_rng(seed)
    found = []
    for age, north, dose in rng.uniform(0, 100, (count, 3)).round(2).tolist():
        region = "north" if north < 50 else "south"
        ill = age + (30 if region == "north" else -30) > 50
        found.append([str(age), region, str(dose), "ill" if ill else "well"])
    return found


def write(path: Path, lines: list[list[str]], head: list[str] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([HEAD if head is None else head, *lines])
    return path


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Path]:
    return {
        name: write(tmp_path / f"{name}.csv", rows(80, seed))
        for seed, name in enumerate(("north", "south", "east"))
    }


def read(path: Path, text: str = TEXT) -> Any:
    return Division(load({"set": text})).site_dataset(path, None)


def federate(run_config: Mapping[str, Any], tables: Mapping[str, Path]) -> Record:
    nodes = [{"site": name, "data": str(path)} for name, path in tables.items()]
    return serve(LocalGrid(client_app, nodes, run_config), load(run_config))


# ---- what is read ------------------------------------------------------------------------------


def test_rows_are_read_by_the_runs_columns_whatever_the_files_order(tmp_path: Path) -> None:
    lines = [["1", "north", "2", "well"], ["3", "south", "4", "ill"], ["5", "west", "6", "ill"]]
    dataset = read(write(tmp_path / "a.csv", lines))
    assert dataset.info.columns == ("age", "dose", "region=north", "region=south", "region=other")
    expected = [[1, 2, 1, 0, 0], [3, 4, 0, 1, 0], [5, 6, 0, 0, 1]]
    assert dataset.train.images[:, :, 0, 0].tolist() == expected
    assert dataset.train.labels.tolist() == [1, 0, 0]
    turned = [["77", *reversed(line)] for line in lines]
    other = read(write(tmp_path / "b.csv", turned, ["unread", *reversed(HEAD)]))
    assert other.checksum == dataset.checksum


def test_constants_are_of_numbers_and_a_category_stays_0_and_1() -> None:
    info = Division(
        load({"set": f"{COLUMNS} data.scale=minmax data.low=0,-1 data.high=10,1"})
    ).run.info
    assert info.low == (0, -1, 0, 0, 0)
    assert info.high == (10, 1, 1, 1, 1)
    assert (info.mean, info.std) == ((5, 0, 0, 0, 0), (5, 1, 1, 1, 1))
    text = f"{COLUMNS} data.scale=standard images.mean=3,4 images.std=2"
    info = Division(load({"set": text})).run.info
    assert (info.mean, info.std) == ((3, 4, 0, 0, 0), (2, 2, 1, 1, 1))


def test_a_category_that_is_not_named_is_told_in_the_sites_own_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read(write(tmp_path / "a.csv", [["1", "west", "2", "well"], ["3", "south", "4", "ill"]]))
    assert "column 'region': 1 of 2 rows have a category" in caplog.text


def test_values_beyond_what_a_model_learns_from_need_constants(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", [["1", "north", "1000", "well"], ["3", "south", "4", "ill"]])
    with pytest.raises(
        DataError, match=r"column 'dose' has values beyond 100 with data.scale=none"
    ):
        read(file, f"{COLUMNS} {HELD_OUT}")
    with pytest.raises(DataError, match=r"data.scale=standard needs images.mean and images.std"):
        Division(load({"set": f"{COLUMNS} data.scale=standard"})).run  # noqa: B018


def test_a_table_needs_a_run_on_tables_and_the_reverse(tmp_path: Path) -> None:
    config = load({"dataset": "digits"})
    with pytest.raises(DataError, match=r"its own table .* needs data.columns, data.label"):
        load_site("digits", config.images, tmp_path / "a.csv", None, config.data)
    with pytest.raises(DataError, match=r"is not a .csv file, and the run learns from tables"):
        read(tmp_path)


# ---- federations -------------------------------------------------------------------------------


def test_a_site_whose_columns_differ_costs_its_own_place_and_never_the_run(
    small: Small, tables: dict[str, Path]
) -> None:
    write(tables["south"], rows(80, 5), ["age", "region", "dosage", "outcome"])
    run_config = small(
        method="fedavg", dataset="file", rounds=1, set=f"{TEXT} federation.join_deadline=1"
    )
    past = RunRecord.open(federate(run_config, tables).directory)
    assert past.completed
    assert past.rounds[-1]["accepted"] == ["east", "north"]
    (why,) = past.partition["left_out"].values()
    assert "lacks 'dose' of the columns that the run names" in why


def test_simulated_tables_give_the_numbers_of_real_sites(
    small: Small, tables: dict[str, Path], tmp_path: Path
) -> None:
    keys = {"method": "fedavg", "dataset": "file", "rounds": 2}
    real = federate(small(**keys, set=f"{TEXT} federation.sites=3"), tables)
    sites = ",".join(map(str, tables.values()))
    run_config = small(**keys, set=f"{TEXT} data.sites={sites}")
    simulated = serve(LocalGrid(client_app, 3, run_config), load(run_config))
    lines = [RunRecord.open(record.directory).rounds[-1] for record in (real, simulated)]
    for key in ("accepted", "sites", "train"):
        assert lines[0][key] == lines[1][key], key


def test_a_file_of_the_servers_judges_what_sites_taught(
    small: Small, tables: dict[str, Path], tmp_path: Path
) -> None:
    central = write(tmp_path / "central.csv", rows(200, 9))
    text = f"{COLUMNS} {SCALE} data.file={central} data.test_share=0.5 fedavg.epochs=5"
    record = federate(small(method="fedavg", dataset="file", rounds=8, set=text), tables)
    assert record.metrics()[-1]["test"]["accuracy"] > 0.85


def test_a_run_that_is_resumed_keeps_its_columns(tmp_path: Path) -> None:
    state = DirectoryState(tmp_path / "state", "record", "north", 1, kind="a")
    _require_columns_of_run(load({"set": TEXT}), state)
    _require_columns_of_run(load({"set": f"{TEXT} rounds=30"}), state)
    other = TEXT.replace("south", "south|west")
    with pytest.raises(
        FederationError, match="started at this site with other columns, kinds or classes"
    ):
        _require_columns_of_run(load({"set": other}), state)


def test_a_file_that_loses_a_column_before_a_resume_leaves_its_site_out(
    small: Small, tables: dict[str, Path]
) -> None:
    keys = {"method": "fedavg", "dataset": "file"}
    text = f"{TEXT} federation.join_deadline=1"
    began = federate(small(**keys, rounds=1, set=text), tables)
    write(tables["south"], rows(80, 5), ["age", "region", "dosage", "outcome"])
    clear_cache()
    again = small(**keys, rounds=2, set=text) | {"resume": str(began.directory)}
    past = RunRecord.open(federate(again, tables).directory)
    first, last = past.rounds[1:]
    assert (first["accepted"], last["accepted"]) == (["east", "north", "south"], ["east", "north"])


def test_the_owner_checks_a_table_before_joining(
    tables: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "data.columns=age,dose,region:north|south",
        "data.label=outcome",
        "images.classes=ill,well",
        *(SCALE.split()),
        *(HELD_OUT.split()),
    ]
    assert main(["data", *words, "--folder", str(tables["north"])]) == 0
    assert "rows of each class" in capsys.readouterr().out
    write(tables["north"], rows(80, 5), ["age", "region", "dosage", "outcome"])
    clear_cache()
    assert main(["data", *words, "--folder", str(tables["north"])]) == 2
    assert "it has 'dosage'" in capsys.readouterr().err


# ---- owners of rows ----------------------------------------------------------------------------


def owned(path: Path) -> Path:
    """Write rows of three hospitals, of 40 rows each, in turn."""
    lines = [[*line, f"hospital {i % 3}"] for i, line in enumerate(rows(120))]
    return write(path, lines, [*HEAD, "hospital"])


@pytest.mark.parametrize("whole", [False, True])
def test_each_owner_is_a_site_and_kept_whole_where_groups_are(tmp_path: Path, whole: bool) -> None:
    text = f"{COLUMNS} {SCALE} data.file={owned(tmp_path / 'all.csv')} partition.kind=natural"
    text += " data.owner=hospital" + (" data.group=hospital" if whole else "")
    sites = 1 if whole else 3  # of three groups one is the test split, and one validates
    division = Division(load({"set": f"{text} federation.sites={sites}"}))
    owners = division.dataset.train.owners
    assert owners is not None
    parts = division.partition(sites)
    assert all(len(set(owners[part])) == 1 for part in parts)
    assert [len(part) for part in parts] == ([40] if whole else pytest.approx([29] * 3, abs=5))
    assert len(division.dataset.test) == (40 if whole else 24)
    assert "hospital" not in "".join(division.run.info.columns)


def test_a_private_run_learns_from_tables_of_sites_own(
    small: Small, tables: dict[str, Path]
) -> None:
    text = f"{COLUMNS} {SCALE} evaluation.on=none privacy.noise_multiplier=1 privacy.examples=60"
    record = federate(small(method="fedavg", dataset="file", rounds=1, set=text), tables)
    past = RunRecord.open(record.directory)
    assert past.rounds[-1]["accepted"] == ["east", "north", "south"]
    assert {row["examples"] for row in past.partition["sites"].values()} == {1}
