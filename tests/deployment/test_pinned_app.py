"""A site that pins its app, `nectar site --pin`: it runs its own copy or nothing, whatever a bundle calls itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deployment import ROOT

from nectar.engines.flower.app import app_folder

pytestmark = [
    pytest.mark.extended,
    pytest.mark.promise(
        "A federation in operation",
        "`nectar site --pin BUNDLE.fab` runs one app, and nothing else",
    ),
]

#: what a fork does with the bundles that come, told in lines: which app is loaded, under a name that climbs
PROBE = """
import sys
from pathlib import Path
import flwr.clientapp.utils as loading
import flwr.supernode.runtime.run_clientapp as process
from nectar.engines.site import clientapp

bundle, folder = Path(sys.argv[1]), Path(sys.argv[2])
pin = clientapp.pinned(bundle.read_bytes(), folder)
clientapp.preload(pin)
clientapp._use(pin)
before = sorted(folder.parent.rglob("*"))
assert process.install_from_fab(bundle.read_bytes(), skip_prompt=True) == pin.folder
assert process.get_project_dir("nectar/nectar-fl", "1.x/../../evil", "deadbeef") == pin.folder
load = loading.get_load_client_app_fn("", None, True)
load("nectar/nectar-fl", "1.x/../../evil", "deadbeef")
print(Path(sys.modules["client_app.app"].__file__).parent.parent == pin.folder)
try:
    process.install_from_fab(bundle.read_bytes() + b" ", skip_prompt=True)
except PermissionError as error:
    print(error == error and str(error) == f"this site runs only the app {pin.total[:16]}")
print([str(p) for p in folder.parent.rglob("*") if p not in before and "__pycache__" not in str(p)])
"""


def test_the_reviewed_app_runs_from_the_sites_own_copy_and_another_is_refused(
    tmp_path: Path,
) -> None:
    flwr = Path(sys.executable).parent / "flwr"
    variables = os.environ | {"FLWR_HOME": str(tmp_path / "home")}
    subprocess.run(
        [flwr, "build", "--app", str(app_folder())], cwd=tmp_path, env=variables, check=True
    )
    (bundle,) = tmp_path.glob("*.fab")
    command = [sys.executable, "-P", "-c", PROBE, str(bundle), str(tmp_path / "place")]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert done.stdout.splitlines()[-3:] == ["True", "True", "[]"], done.stdout + done.stderr
