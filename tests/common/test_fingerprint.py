"""The fingerprint of the source: the same wherever the app is unpacked, another for another source."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest
from places import ROOT

from common.fingerprint import (
    PACKAGES,
    code_files,
    fingerprint_of,
    source_files,
    source_fingerprint,
)


def whole(root: Path) -> str:
    return fingerprint_of(root, source_files(root))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package)
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
    assert set(source_files(ROOT)) <= carried
    never = [
        p for p in source_files(ROOT) if p.name.startswith("test_") or p.stem.endswith("_test")
    ]
    assert never == []


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("synth/ball.py", True),
        ("server_app/evaluation.py", True),
        ("conf/dataset/digits.yaml", False),
        ("server_app/sending/packing.py", False),
    ],
)
def test_the_code_s_fingerprint_goes_by_what_decides_numbers(
    copy: Path, name: str, counts: bool
) -> None:
    """A new experiment file or another report must not make finished runs strangers."""
    before = fingerprint_of(copy, code_files(copy))
    with (copy / name).open("a") as file:
        file.write("\n")
    assert (fingerprint_of(copy, code_files(copy)) != before) == counts
