"""Flower's own commands as docs/running.md has them, typed into a shell whose home is empty."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from deployment import PROGRAMS, free_port
from places import ROOT

PAGES = {name: (ROOT / name).read_text("utf-8") for name in ("README.md", "docs/running.md")}


class Shell:
    """A shell in the repository, and what its commands leave running in the background."""

    def __init__(self, home: Path) -> None:
        self._mark = f"HOME={home}".encode()
        ports = ("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", "FLWR_LOCAL_CONTROL_API_PORT")
        given = {"HOME": str(home), "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
        given |= {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}
        given |= {port: str(free_port()) for port in ports}
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("NECTAR_", "FLWR_"))}
        self._environment = kept | given

    def __call__(self, line: str) -> str:
        """Return what a line prints, which must exit with 0."""
        done = subprocess.run(
            ["bash", "-euc", line],
            cwd=ROOT,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def status(self) -> str:
        """Return how the newest run ended, by Flower's own list."""
        answer = self("flwr list local --format json 2>/dev/null")
        runs = json.loads(answer[answer.index("{") :])["runs"]
        return str(max(runs, key=lambda run: run["pending-at"])["status"])

    def close(self) -> None:
        """End what was left, by pid: Flower leaves its local SuperLink running."""
        for entry in [path for path in Path("/proc").iterdir() if path.name.isdigit()]:
            with suppress(OSError):
                if self._mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.close()


def test_the_first_screen_types_what_the_page_explains() -> None:
    """PATH, the variable and the nodes are the same in both."""
    words = ('export PATH="$PWD/.venv/bin:$PATH" FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1',)
    words += ("flwr run . --stream --federation-config 'num-supernodes=10'",)
    assert all(word in page for page in PAGES.values() for word in words)


@pytest.mark.extended
def test_flwr_run_trains(shell: Shell, tmp_path: Path) -> None:
    (line,) = re.findall(r"^flwr run \. --stream --federation.*", PAGES["docs/running.md"], re.M)
    told = shell(line)
    assert "round 3/3: accuracy " in told
    assert "10 of 10 sites" in told
    assert shell.status() == "finished:completed"
    (record,) = (tmp_path / "nectar" / "runs").iterdir()
    assert json.loads((record / "provenance.json").read_text())["outcome"] == "completed"
