"""A table that lost a row, and a function that never splits alike, stop a run on Ray and over a SuperLink too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deployment import Deployment

from nectar.records.outputs import with_recorded

pytestmark = [pytest.mark.extended, pytest.mark.usefixtures("fresh_cache")]

REFUSED = "the data are not those that the run began with (checksum"
SPLITTING = """
import numpy as np
def load():
    draw = np.random.default_rng()
    return {"train_images": draw.normal(size=(60, 4)), "train_labels": np.arange(60) % 2,
            "test_images": draw.normal(size=(20, 4)), "test_labels": np.arange(20) % 2}
"""


def table(path: Path, rows: int) -> None:
    values = np.random.default_rng(0).normal(size=(60, 4)).round(3)
    lines = [",".join(map(str, row)) + f",{'ab'[i % 2]}" for i, row in enumerate(values)][-rows:]
    path.write_text("\n".join(["c0,c1,c2,c3,y", *lines]) + "\n")


def simulate(at: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "nectar", "simulate", *words, f"output-dir={at / 'runs'}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(at), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    return done.returncode, done.stdout + done.stderr


WORDS = "fedavg data.scale=none fedavg.epochs=1 federation.sites=2 partition.kind=iid rounds=1"


@pytest.mark.long
def test_on_ray_a_table_that_lost_a_row_is_not_learned_from(tmp_path: Path) -> None:
    table(tmp_path / "own.csv", 60)
    words = [*WORDS.split(), f"data.file={tmp_path / 'own.csv'}", "data.label=y"]
    code, message = simulate(tmp_path, *words, f"data-dir={tmp_path / 'data'}")
    assert code == 0, message
    (record,) = (tmp_path / "runs").glob("[!.]*")
    table(tmp_path / "own.csv", 59)
    code, message = simulate(tmp_path, f"resume={record}", "rounds=2")
    assert code
    assert REFUSED in message


@pytest.mark.parametrize("judged", ["server", pytest.param("sites", marks=pytest.mark.long)])
def test_on_ray_a_function_that_splits_differently_begins_no_round(
    tmp_path: Path, judged: str
) -> None:
    (tmp_path / "splitting.py").write_text(SPLITTING)
    words = f"{WORDS} dataset=splitting:load data.kind=table compute.workers=2".split()
    words += [f"data-dir={tmp_path / 'data'}", f"evaluation.on={judged}", "data.site_holdout=0.2"]
    code, message = simulate(tmp_path, *words)
    assert code
    assert REFUSED in message
    assert "load gave other data than before: fix its seed" in message
    assert not [*(tmp_path / "runs").glob("[!.]*/metrics.jsonl")]


def refusal(federation: Deployment, run_config: dict[str, Any]) -> str:
    """Submit a run that fails, and return what its server logged."""
    run_id = federation.submit(run_config)
    assert federation.wait(run_id) == "finished:failed"
    return federation.server_log(run_id)


@pytest.mark.long
def test_over_a_superlink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question is answered in a new process, so that the split of such a function differs from one to the next."""
    for name in ("data", "link"):
        (tmp_path / name).mkdir()
    (tmp_path / "splitting.py").write_text(SPLITTING)
    monkeypatch.setenv("NECTAR_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    table(tmp_path / "data/own.csv", 60)
    allowed = "allow-imports='splitting'"
    nodes = [f"partition-id={i} num-partitions=2 {allowed}" for i in range(2)]
    words = "data.scale=none fedavg.epochs=1 federation.sites=2 partition.kind=iid"

    def asked(where: str, more: str, **keys: Any) -> dict[str, Any]:
        return {
            "method": "fedavg",
            "rounds": 1,
            "output-dir": str(tmp_path / where),
            "set": f"{words} {more}",
            **keys,
        }

    with Deployment(tmp_path / "link", nodes) as federation:
        own = f"data.file={tmp_path / 'data/own.csv'} data.label=y"
        assert federation.wait(federation.submit(asked("table", own))) == "finished:completed"
        (record,) = (tmp_path / "table").glob("[!.]*")
        table(tmp_path / "data/own.csv", 59)
        again = with_recorded({"resume": str(record), "rounds": 2})
        assert REFUSED in refusal(federation, again)
        assert len((record / "metrics.jsonl").read_text().splitlines()) == 2
        judged = "data.kind=table evaluation.on=sites data.site_holdout=0.2"
        for where, more in (("server", "data.kind=table"), ("sites", judged)):
            message = refusal(federation, asked(where, more, dataset="splitting:load"))
            assert REFUSED in message
            assert "load gave other data than before: fix its seed" in message
            assert not [*(tmp_path / where).glob("[!.]*/metrics.jsonl")]
