"""`./nectarw`: the words reach nectar, and what a machine lacks is one sentence, before anything is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with the script alone, and a folder of programs that stands first on the PATH."""
    (tmp_path / "bin").mkdir()
    shutil.copy(ROOT / "nectarw", tmp_path / "nectarw")
    return tmp_path


def program(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def typed(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    found = f"{clone / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin"
    return subprocess.run(
        [str(clone / "nectarw"), *words],
        cwd=clone / "bin",
        env={"PATH": found},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("python3", "said"),
    [
        ("exit 1", "python3 is missing or too old: install Python 3.11 or newer"),
        ('[ "$1" = -c ]', "this python3 has no pip"),
        ('[ "$1" = -c ] || [ "$3" = --version ]', "pip could not install uv, see above"),
    ],
)
def test_what_a_machine_lacks_is_a_sentence(clone: Path, python3: str, said: str) -> None:
    program(clone / "bin" / "python3", python3)
    done = typed(clone, "simulate")
    assert done.returncode == 2
    assert done.stderr.startswith(f"nectarw: {said}")
    assert done.stderr.count("\n") == 1
    assert {path.name for path in clone.iterdir()} == {"bin", "nectarw"}


def test_an_old_python_is_none(clone: Path) -> None:
    """The version is compared by the interpreter itself, whatever it is."""
    old = f"exec {sys.executable} -c \"import sys; sys.version_info = (3, 10, 13); exec('$2')\""
    program(clone / "bin" / "python3", old)
    assert typed(clone, "simulate").stderr.startswith("nectarw: python3 is missing or too old")


def test_the_words_reach_the_program_from_where_they_were_typed(clone: Path) -> None:
    program(clone / ".uv" / "bin" / "uv", 'echo "uv $*"')
    program(clone / ".venv" / "bin" / "nectar", 'echo "nectar $* in $PWD"')
    program(clone / ".venv" / "bin" / "pytest", 'echo "pytest $* in $PWD"')
    sync = f"uv sync -q --inexact --project {clone}"
    asked = typed(clone, "run", "fedavg", "data.file=a b.csv").stdout.splitlines()
    assert asked == [
        f"{sync} --extra simulation",
        f"nectar run fedavg data.file=a b.csv in {clone / 'bin'}",
    ]
    asked = typed(clone, "test", "-m", "extended").stdout.splitlines()
    assert asked == [f"{sync} --group dev", f"pytest -m extended in {clone}"]


def test_what_uv_cannot_install_is_a_sentence(clone: Path) -> None:
    program(clone / ".uv" / "bin" / "uv", "exit 1")
    done = typed(clone, "simulate")
    assert done.returncode == 2
    assert "nectarw: uv could not install what Nectar needs" in done.stderr
