"""A run learns from the data that it began with: whoever reads others stops, where labels are drawn by lot.

A fifth is cut off for the test before all else, so that one row less cuts another fifth: most of it was learned from.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_files import forget_loaded
from federation import numbers
from image_folders import CLASSES, paint
from small import Small

from client_app.app import app as client_app
from common.config.loading import load
from common.errors import NectarError
from nectar import cli
from nectar.engines.local_grid import LocalGrid
from nectar.records.outputs import with_recorded
from server_app.app import serve
from server_app.record import Record

pytestmark = pytest.mark.usefixtures("fresh_cache")

REFUSED = "the data are not those that the run began with (checksum"
BY_LOT = (
    "fedavg data.scale=none fedavg.lr=0.1 fedavg.epochs=5 federation.sites=2 partition.kind=iid"
)


def drawn(n: int = 100, seed: int = 0) -> tuple[Any, Any]:
    """Return rows of noise and labels that say nothing of them, as many of each."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 60)).round(3), rng.permutation(np.arange(n) % 2)


def write_table(path: Path, n: int = 100) -> None:
    rows, labels = drawn()
    lines = [
        ",".join(map(str, row)) + f",{'ab'[label]}" for row, label in zip(rows, labels, strict=True)
    ][:n]
    path.write_text("\n".join([",".join([*map("c{}".format, range(60)), "y"]), *lines]) + "\n")


def pictures(n: int, side: int = 8) -> dict[str, Any]:
    rng = np.random.default_rng(n)
    return {
        f"{part}_{what}": value
        for part in ("train", "test")
        for what, value in (
            ("images", rng.integers(0, 256, (n, side, side), dtype=np.uint8)),
            ("labels", np.arange(n) % 2),
        )
    }


def own_module(monkeypatch: pytest.MonkeyPatch, returned: Any) -> str:
    module = types.ModuleType("own_module")
    module.load = lambda: returned  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_module", module)
    return "dataset=own_module:load"


Put = Callable[[int, Path, pytest.MonkeyPatch], str]
QUICK = "images.size=8 model.depth=1"


def csv_file(n: int, at: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    write_table(at / "own.csv", n)
    return f"data.file={at / 'own.csv'} data.label=y data.scale=none"


def constants_of_a_file(n: int, at: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The arrays stay, and what they are normalised by changes."""
    np.savez(at / "own.npz", **pictures(20), mean=0.1 + n / 1000)
    return f"data.file={at / 'own.npz'} model.depth=1"


def folder(n: int, at: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    shutil.rmtree(at / "pictures", ignore_errors=True)
    for name in CLASSES.split(","):
        paint(at / "pictures", name, n)
    return f"dataset=images images.folder={at / 'pictures'} {QUICK}"


def site_folders(n: int, at: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for seed, site in enumerate(("north", "south")):
        shutil.rmtree(at / site, ignore_errors=True)
        for name in CLASSES.split(","):
            paint(at / site, name, n, seed=seed)
    judged = f"evaluation.on=sites data.site_holdout=0.2 {QUICK}"
    return f"dataset=images images.sites={at / 'north'},{at / 'south'} {judged}"


def function(n: int, at: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return f"{own_module(monkeypatch, pictures(n))} model.depth=1"


@pytest.mark.sweep
@pytest.mark.parametrize("put", [csv_file, constants_of_a_file, site_folders, function])
def test_data_that_changed_are_not_learned_from_on_resume(
    put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        f"{put(30, tmp_path, monkeypatch)} fedavg.epochs=1 federation.sites=2 partition.kind=iid"
    )
    places = [f"output-dir={tmp_path / 'runs'}", f"data-dir={tmp_path / 'data'}"]
    assert cli.main(["run", "fedavg", "rounds=1", *words.split(), *places]) == 0
    (record,) = (tmp_path / "runs").glob("[!.]*")
    before = numbers(Record(record))
    put(29 if put is csv_file else 32, tmp_path, monkeypatch)
    capsys.readouterr()
    assert cli.main(["run", f"resume={record}", "rounds=2"]) == 2
    message = capsys.readouterr().err
    assert REFUSED in message
    assert ("load gave other data than before: fix its seed" in message) == ("own_module" in words)
    assert numbers(Record(record)) == before
    put(30, tmp_path, monkeypatch)
    assert cli.main(["run", f"resume={record}", "rounds=2"]) == 0


def nectar(*words: str, at: Path) -> tuple[int, str]:
    """Return the exit code and all that is said of a command in a process of its own, which imports from ``at``."""
    done = subprocess.run(
        [sys.executable, "-m", "nectar", *words, f"output-dir={at / 'runs'}"],
        env=_environment(at),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


def _environment(at: Path) -> dict[str, str]:
    import os

    path = [str(at), *filter(None, sys.path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "NECTAR_DATA": str(at / "data")}


def unseeded(at: Path) -> list[str]:
    """Write a function that splits differently at each call, and return the words of a run on it."""
    rows, labels = drawn()
    np.savez(at / "drawn.npz", rows=rows, labels=labels)
    (at / "splitting.py").write_text(
        "from pathlib import Path\n"
        "import numpy as np\n"
        "def load():\n"
        "    found = np.load(Path(__file__).with_name('drawn.npz'))\n"
        "    rows, labels = found['rows'], found['labels']\n"
        "    test = np.zeros(len(labels), bool)\n"
        "    for kind in (0, 1):\n"
        "        test[np.random.default_rng().permutation(np.flatnonzero(labels == kind))[:20]] = True\n"
        "    return {'train_images': rows[~test], 'train_labels': labels[~test],\n"
        "            'test_images': rows[test], 'test_labels': labels[test]}\n"
    )
    return [*BY_LOT.split(), "dataset=splitting:load", "data.kind=table", "rounds=3"]


@pytest.mark.extended
def test_a_function_that_splits_differently_stops_workers(tmp_path: Path) -> None:
    words = [*unseeded(tmp_path), "evaluation.on=sites", "data.site_holdout=0.2"]
    assert nectar("run", *words, "compute.workers=1", at=tmp_path)[0] == 0
    code, message = nectar("run", *words, "compute.workers=2", at=tmp_path)
    assert code == 2
    assert f"nectar: {REFUSED}" in message
    assert "load gave other data than before: fix its seed" in message


# ---- a real site's own folder --------------------------------------------------------------------------


def federate(run_config: dict[str, Any], nodes: list[dict[str, str]]) -> Record:
    return serve(LocalGrid(client_app, nodes, run_config), load(run_config))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("more", "kept"),
    [
        ("evaluation.on=sites data.site_holdout=0.25", ["south"]),
        ("evaluation.on=none data.validation_at=sites data.validation=0.25", ["south"]),
        ("evaluation.on=none", ["north", "south"]),
        (
            "evaluation.on=none data.site_holdout=0.25 privacy.noise_multiplier=1 privacy.examples=20",
            ["north", "south"],
        ),
    ],
)
def test_a_sites_own_folder_that_grew_leaves_no_held_out_picture_to_learn_from(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, kept: list[str]
) -> None:
    """Only where a share is drawn by position; else the site goes on, and says so in its log."""
    nodes = []
    for seed, site in enumerate(("north", "south")):
        for name in CLASSES.split(","):
            paint(tmp_path / site, name, 8, seed=seed)
        nodes.append(
            {
                "site": site,
                "data": str(tmp_path / site),
                "state-dir": str(tmp_path / f"kept-{site}"),
            }
        )
    words = f"images.classes={CLASSES} images.size=8 model.depth=1 federation.sites=2 {more}"
    record = federate(small(method="fedavg", dataset="images", rounds=1, set=words), nodes)
    assert record.metrics()[-1]["accepted"] == ["north", "south"]
    paint(tmp_path / "north", "red", 9)
    forget_loaded(monkeypatch)
    again = with_recorded({"resume": str(record.directory), "rounds": 2})
    if kept == ["south"]:
        with pytest.raises(NectarError, match="the data are not those"):
            federate(again, nodes)
        return
    record = federate(again, nodes)
    assert record.metrics()[-1]["accepted"] == kept


def test_the_record_states_the_checksum_of_every_simulated_sites_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = site_folders(10, tmp_path, monkeypatch).split()
    assert cli.main(["run", "fedavg", "rounds=1", *words, f"output-dir={tmp_path / 'runs'}"]) == 0
    (record,) = (tmp_path / "runs").glob("[!.]*")
    data = json.loads((record / "provenance.json").read_text())["data"]
    assert (data["sha256"], [*data["sites"]]) == ("", ["north", "south"])
    assert len({*data["sites"].values()}) == 2
