"""Sites with tables of their own over a SuperLink: one lacks a column, one has a category that no other has."""

from __future__ import annotations

import csv
import time
from pathlib import Path

import numpy as np
import pytest
from deployment import Deployment
from small import Small

from nectar.records.record import RunRecord

HEAD = ["age", "region", "dose", "outcome"]
COLUMNS = "'data.columns=age,dose,region:north|south' data.label=outcome images.classes=ill,well"
TEXT = f"{COLUMNS} data.scale=minmax data.low=0 data.high=100"


def write(path: Path, seed: int, head: list[str], region: str = "north") -> None:
    rows = np.random.default_rng(seed).uniform(0, 100, (60, 2)).round(2).tolist()
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8", newline="") as file:
        lines = [
            [a, region if i % 2 else "south", d, "ill" if a > 50 else "well"]
            for i, (a, d) in enumerate(rows)
        ]
        csv.writer(file).writerows([head, *lines])
    part.replace(path)


@pytest.mark.long
@pytest.mark.extended
def test_a_table_that_does_not_fit_costs_its_site_its_place(small: Small, tmp_path: Path) -> None:
    other = ["age", "region", "secret dose", "outcome"]
    write(tmp_path / "north.csv", 0, HEAD)
    write(tmp_path / "south.csv", 1, HEAD, region="abroad")
    write(tmp_path / "east.csv", 2, other)
    sites = ("north", "south", "east")
    run_config = small(
        method="fedavg",
        dataset="file",
        rounds=8,
        set=f"{TEXT} evaluation.on=none federation.sites=3 federation.join_deadline=10",
    ) | {"output-dir": str(tmp_path / "runs")}
    nodes = [f"site='{site}' data='{tmp_path}/{site}.csv'" for site in sites]
    with Deployment(tmp_path, nodes=nodes) as federation:
        run = federation.submit(run_config)
        end = time.monotonic() + 300
        while not any(tmp_path.glob("runs/*/metrics.jsonl")) and time.monotonic() < end:
            time.sleep(0.1)
        write(tmp_path / "south.csv", 1, other)  # in the middle of the run
        assert federation.wait(run) == "finished:completed"
        log = federation.server_log(run)
    (found,) = (tmp_path / "runs").iterdir()
    past = RunRecord.open(found)
    lacks = "its table lacks 'dose' of the columns that data.columns names"
    assert lacks in " ".join(past.partition["left_out"].values())
    assert (past.rounds[-1]["accepted"], list(past.rounds[-1]["rejected"])) == (
        ["north"],
        ["south"],
    )
    assert lacks in past.rounds[-1]["rejected"]["south"]
    assert lacks in log
    assert not any(word in log for word in ("secret", "abroad", "south.csv", "east.csv"))
    assert "30 of 60 rows have a category" in (tmp_path / "node-1.log").read_text()
    assert "east.csv lacks 'dose' of the columns" in (tmp_path / "node-2.log").read_text()
