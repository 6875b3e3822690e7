"""The program by which a site pins its app, as docs/deployment.md prints it: it runs the site's copy or nothing."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from deployment import ROOT

REVIEWED, OTHER = b"the bundle that the site has read", b"another one"

PYPROJECT = """
[project]
name = "tiny"
version = "1"
[tool.flwr.app]
publisher = "site"
[tool.flwr.app.components]
serverapp = "tiny:app"
clientapp = "tiny:app"
"""

#: what stands in for Flower's own main function: a bundle comes, under a name that climbs, and its app is loaded
PROBE = """
import runpy, sys
import flwr.supernode.cli as cli

def main():
    from flwr.clientapp.utils import get_load_client_app_fn
    from flwr.supernode.runtime import run_clientapp
    print("unpacked:", run_clientapp.install_from_fab({fab!r}, skip_prompt=True))
    get_load_client_app_fn("", None, True)("site/tiny", "1.x/../../evil", "deadbeef")
    print("loaded:", sys.modules["tiny"].__file__)

cli.flwr_clientapp = main
runpy.run_path({program!r}, run_name="__main__")
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Make the program by the document's own lines, for a site whose copy is a tiny app."""
    text = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    found = re.search(r"^cat > \$PIN/bin/flwr-clientapp <<END\n.*?^END\n", text, re.S | re.M)
    assert found
    total = hashlib.sha256(REVIEWED).hexdigest()
    for folder, mark in ((f"apps/site.tiny.1.{total[:8]}", "own"), ("evil.deadbeef", "evil")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "pyproject.toml").write_text(PYPROJECT)
        (tmp_path / folder / "tiny.py").write_text(
            f"from flwr.clientapp import ClientApp\nmark = {mark!r}\napp = ClientApp()\n"
        )
    (tmp_path / "bin").mkdir()
    variables = {"PIN": str(tmp_path), "SUM": total, "PATH": "/usr/bin:/bin"}
    subprocess.run(["bash", "-euc", found[0]], env=variables, cwd=ROOT, check=True)
    return tmp_path / "bin" / "flwr-clientapp"


def call(program: Path, fab: bytes) -> subprocess.CompletedProcess[str]:
    probe = PROBE.format(fab=fab, program=str(program))
    command = [sys.executable, "-I", "-c", probe]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_reviewed_app_runs_from_the_sites_own_copy(program: Path) -> None:
    done = call(program, REVIEWED)
    assert done.returncode == 0, done.stderr
    unpacked, loaded = done.stdout.splitlines()
    (copy,) = (program.parent.parent / "apps").iterdir()
    assert unpacked == f"unpacked: {copy}"
    assert loaded == f"loaded: {copy}/tiny.py"


def test_another_app_is_refused_before_anything_is_unpacked(program: Path) -> None:
    before = sorted(program.parent.parent.rglob("*"))
    done = call(program, OTHER)
    assert done.returncode == 1
    total = hashlib.sha256(REVIEWED).hexdigest()
    assert f"PermissionError: this site runs the app {total[:16]} and no other" in done.stderr
    assert done.stdout == ""
    assert sorted(program.parent.parent.rglob("*")) == before
