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
from common.config.code_fingerprint import code_files, code_fingerprint
from common.config.loading import load
from common.config.resolved import Config
from common.methods import METHODS

ROOMS = ("strategies", "client_app")
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


@pytest.mark.parametrize("name", ["synth/starts.py", "conf/dataset/digits.yaml"])
def test_a_changed_byte_changes_it(copy: Path, name: str) -> None:
    with (copy / name).open("a") as file:
        file.write("\n")
    assert whole(copy) != whole(ROOT)


def test_a_renamed_file_changes_it(copy: Path) -> None:
    (copy / "synth" / "unet.py").rename(copy / "synth" / "u_net.py")
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


def codes(root: Path) -> dict[str, str]:
    return {name: code_fingerprint(configuration(name), root=root, now=True) for name in METHODS}


@pytest.mark.long
@pytest.mark.extended
def test_a_change_of_code_makes_new_runs_of_the_methods_that_it_belongs_to(copy: Path) -> None:
    """One method's files of those that are built on it; shared files, and a comment in one, of all."""
    before = codes(copy)
    everywhere = set(METHODS)
    for names, methods in {
        "strategies/topk.py": {"topk", "masking"},
        "client_app/feddm.py": {"feddm", "fedaf", "feddgm"},
        "strategies/scaffold.py": {"scaffold", "fedpvr"},
        "client_app/fedprox.py": {"fedprox", "fednova"},
        "common/specs/feddpms.py": {"fedvae", "feddpms"},
        "strategies/shuffled_pool.py": {"fedssyn"},
        "common/settings/fedavg.py": everywhere,
        "client_app/device.py": everywhere,
        "common/models/convnet.py": everywhere,
        "conf/dataset/digits.yaml": set(),
    }.items():
        for name in names.split():
            with (copy / name).open("a") as file:
                file.write("\n# Why.\n")
        after = codes(copy)
        assert {method for method in METHODS if after[method] != before[method]} == methods, names
        before = after


def test_a_run_counts_the_methods_inside_it() -> None:
    plain, inner = (
        set(code_files(load({"method": "fedssyn", "set": f"fedssyn.inner={name}"})))
        for name in ("fedavg", "scaffold")
    )
    assert inner - plain == {f"{room}/scaffold.py" for room in ROOMS}
    assert plain < inner


@pytest.mark.extended
def test_it_is_the_same_before_and_after_what_a_run_imports(tmp_path: Path) -> None:
    """In a process that has imported nothing else, and at the end of one that has run."""
    message = subprocess.run(
        [
            sys.executable,
            "-c",
            "from common.config.loading import load\nfrom common.config.code_fingerprint import code_fingerprint\n"
            "words = {'method': 'fedavg', 'rounds': 1, 'set': 'federation.sites=2 fedavg.epochs=1 model.width=4'}\n"
            "before = code_fingerprint(load(words), now=True)\nimport nectar\n"
            "more = {'federation.sites': 2, 'fedavg.epochs': 1, 'model.width': 4}\n"
            f"run = nectar.run('fedavg', rounds=1, output_dir={str(tmp_path)!r}, progress=False, **more)\n"
            "assert code_fingerprint(load(words), now=True) == before\n"
            "import json; print(json.loads((run.directory / 'provenance.json').read_text())['code'] == before)",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert message.stdout.splitlines()[-1] == "True"


def test_a_users_own_strategy_counts_with_what_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with every method, since nobody knows on which it is built; of a package with all below it."""
    (tmp_path / "strategy_of_a_test.py").write_text(
        "from flwr.serverapp.strategy import FedAvg\nimport step_of_a_test\nclass Mine(FedAvg): ...\n"
    )
    (tmp_path / "step_of_a_test.py").write_text("step = 1\n")
    (tmp_path / "net_of_a_test/inner").mkdir(parents=True)
    (tmp_path / "net_of_a_test/__init__.py").write_text("def net(shape, classes): ...\n")
    (tmp_path / "net_of_a_test/inner/part.py").write_text("width = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = load({"method": "strategy_of_a_test:Mine", "set": "model.name=net_of_a_test:net"})
    of_methods = {f"{room}/{name}.py" for room in ROOMS for name in METHODS}
    assert {file for file in of_methods if (ROOT / file).is_file()} <= set(code_files(config))
    for changed in ("step_of_a_test.py", "strategy_of_a_test.py", "net_of_a_test/inner/part.py"):
        before = code_fingerprint(config, now=True)
        with (tmp_path / changed).open("a") as file:
            file.write("# twice\n")
        assert code_fingerprint(config, now=True) != before


@pytest.mark.extended
def test_it_is_the_same_in_another_process_at_another_place(copy: Path, tmp_path: Path) -> None:
    message = subprocess.run(
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
    code, source, root = message.stdout.split()
    assert (code, source) == (code_fingerprint(load({"method": "topk"})), source_fingerprint())
    assert root == str(copy.resolve())
