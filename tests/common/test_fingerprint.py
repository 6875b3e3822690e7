"""Two fingerprints: of the whole app, and of the code that decides one run's numbers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from places import ROOT

from common.code.fingerprint import PACKAGES, fingerprint_of, source_files, source_fingerprint
from common.code.import_closure import Sources
from common.config.code_fingerprint import code_fingerprint, code_modules
from common.config.loading import load
from common.config.resolved import Config
from common.methods import METHODS

FOLDERS = (*PACKAGES, "conf")


def whole(root: Path) -> str:
    return fingerprint_of(root, source_files(root))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


def test_it_goes_by_content_not_by_place_or_time(copy: Path) -> None:
    assert whole(copy) == whole(ROOT) == source_fingerprint()
    (copy / "common" / "__pycache__" / "x.pyc").parent.mkdir(exist_ok=True)
    (copy / "common" / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert whole(copy) == whole(ROOT)


@pytest.mark.parametrize("name", ["synth/ball.py", "conf/dataset/digits.yaml"])
def test_a_changed_byte_changes_it(copy: Path, name: str) -> None:
    with (copy / name).open("a") as file:
        file.write("\n")
    assert whole(copy) != whole(ROOT)


def test_a_renamed_file_changes_it(copy: Path) -> None:
    (copy / "synth" / "ball.py").rename(copy / "synth" / "sphere.py")
    assert whole(copy) != whole(ROOT)


def test_the_flower_app_carries_every_file_it_covers() -> None:
    """Plain `flwr run` loads the server from the bundle and the devices from the folder: both must agree."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    carried = {p for glob in project["tool"]["flwr"]["app"]["fab-include"] for p in ROOT.glob(glob)}
    assert set(source_files(ROOT)) == carried
    never = [
        p for p in source_files(ROOT) if p.name.startswith("test_") or p.stem.endswith("_test")
    ]
    assert never == []


@cache
def configuration(method: str) -> Config:
    return load({"method": method})


def codes(sources: Sources) -> dict[str, str]:
    return {name: code_fingerprint(configuration(name), sources) for name in METHODS}


@pytest.mark.long
@pytest.mark.extended
def test_a_change_of_code_makes_new_runs_of_the_methods_that_it_belongs_to(copy: Path) -> None:
    """One method's files those of that method alone; what writes, shows or sends makes none new."""
    sources = Sources(copy, again=True)
    before = codes(sources)
    everywhere = set(METHODS)
    for names, methods in {
        "strategies/topk.py": {"topk"},
        "client_app/topk.py": {"topk"},
        "common/wire/synthetic_batches.py": {"fedsynth"},
        "common/settings/fedavg.py": everywhere - {"feddm", "fedaf", "real"},
        "strategies/scaffold.py": {"scaffold", "fedpvr"},
        "client_app/fedprox.py": {"fedprox", "fednova"},
        "strategies/surrogate.py": {"feddm", "fedaf", "fedssyn", "real"},
        "client_app/device.py": everywhere,
        "server_app/evaluation.py": everywhere,
        "common/data/division/partitions.py": everywhere,
        "common/models/building.py": everywhere,
        "common/models/convnet.py": everywhere - {"fedvae", "feddpms"},  # which name a network
        "common/models/leafcnn.py common/models/registry.py server_app/sending/packing.py "
        "common/methods.py common/config/problems.py conf/dataset/digits.yaml": set(),
    }.items():
        for name in names.split():
            with (copy / name).open("a") as file:
                file.write("\nadded = 1\n")
        after = codes(sources)
        assert {method for method in METHODS if after[method] != before[method]} == methods, names
        before = after


@pytest.mark.long
@pytest.mark.extended
def test_a_comment_makes_none_new(copy: Path) -> None:
    sources = Sources(copy, again=True)
    before = codes(sources)
    for path in source_files(copy):
        with path.open("a") as file:
            file.write("\n# Why.\n" + ('"""What."""\n' if path.suffix == ".py" else ""))
    assert codes(sources) == before == codes(Sources())


def test_what_a_person_uses_is_none_of_it() -> None:
    everything = {name for method in METHODS for name in code_modules(configuration(method))}
    assert {name.partition(".")[0] for name in everything} == set(PACKAGES)


def test_a_users_own_strategy_counts_with_what_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "strategy_of_a_test.py").write_text(
        "from flwr.serverapp.strategy import FedAvg\nimport step_of_a_test\nclass Mine(FedAvg): ...\n"
    )
    (tmp_path / "step_of_a_test.py").write_text("step = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = load({"method": "strategy_of_a_test:Mine"})
    sources = Sources(again=True)
    assert {"strategy_of_a_test", "step_of_a_test"} <= set(code_modules(config, sources))
    before = code_fingerprint(config, sources)
    (tmp_path / "step_of_a_test.py").write_text("step = 2  # twice\n")
    assert code_fingerprint(config, sources) != before


@pytest.mark.extended
def test_it_is_the_same_in_another_process_at_another_place(copy: Path, tmp_path: Path) -> None:
    said = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            "from common.config.loading import load\nfrom common.code.fingerprint import ROOT, source_fingerprint\n"
            "from common.config.code_fingerprint import code_fingerprint\n"
            "print(code_fingerprint(load({'method': 'topk'})), source_fingerprint(), ROOT)",
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=True,
    )
    code, source, root = said.stdout.split()
    assert (code, source) == (code_fingerprint(load({"method": "topk"})), source_fingerprint())
    assert root == str(copy.resolve())
