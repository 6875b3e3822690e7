"""Nectar's wheel, built from this source and installed apart from it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.metadata import distributions
from pathlib import Path

from places import ROOT


def build(to: Path) -> Path:
    """Build the wheel into ``to`` and return it."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory"]
    subprocess.run([*command, str(to)], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = to.glob("*.whl")
    return wheel


class Installed:
    """An environment with the wheel in it, an empty folder and an empty home; the dependencies are this one's.

    A .pth file names their folder: other .pth files in there, such as that of an editable Nectar, do not count.

    Parameters
    ----------
    wheel : Path
        The wheel.
    directory : Path
        Where all of it goes.
    """

    def __init__(self, wheel: Path, directory: Path) -> None:
        environment, self.home, self.folder = (
            directory / name for name in ("environment", "home", "folder")
        )
        venv.create(environment, symlinks=True)
        self.home.mkdir()
        self.folder.mkdir()
        names = {"base": str(environment), "platbase": str(environment)}
        self.packages = Path(sysconfig.get_path("purelib", "venv", names))
        self.programs = Path(sysconfig.get_path("scripts", "venv", names))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.packages)
        (self.packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
        self._write_programs()

    def _write_programs(self) -> None:
        """Write the programs of Nectar and Flower, which start this environment's Python."""
        for distribution in distributions(path=[str(self.packages), sysconfig.get_path("purelib")]):
            if distribution.name not in ("nectar-fl", "flwr"):
                continue
            for entry in distribution.entry_points.select(group="console_scripts"):
                program = self.programs / entry.name
                program.write_text(
                    f"#!{self.programs / 'python'}\nimport sys\nfrom {entry.module} import {entry.attr} as main\n"
                    "sys.exit(main())\n"
                )
                program.chmod(0o755)

    def call(
        self, *words: str, folder: Path | None = None, code: int = 0, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Call a program of the environment in the empty folder, and see that it ends with ``code``."""
        outside = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        home = {"HOME": str(self.home), "PATH": f"{self.programs}:/usr/bin:/bin"}
        for name in ("NECTAR_RUNS", "NECTAR_DATA", "XDG_CACHE_HOME", "FLWR_HOME"):
            outside.pop(name, None)
        done = subprocess.run(
            [str(self.programs / words[0]), *words[1:]],
            cwd=folder or self.folder,
            env=outside | home | variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done
