"""The notebook in examples/: committed without outputs, and right from its first cell to its last."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from places import ROOT

NOTEBOOK = ROOT / "examples" / "first-run.ipynb"


def cells(notebook: Any) -> list[Any]:
    """Return the cells with code."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_the_committed_notebook_has_no_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.outputs and cell.execution_count is None for cell in cells(notebook))


@pytest.mark.slow
def test_the_notebook_runs_in_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "NECTAR_RUNS", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, resources=place).execute()

    outputs = [output for cell in cells(notebook) for output in cell.outputs]
    said = "".join(o.text for o in outputs if o.output_type == "stream" and o.name == "stdout")
    assert not [o for o in outputs if o.output_type == "stream" and o.name == "stderr"]
    assert "\x1b" not in said
    rounds = re.findall(r"^round (\d)/2: accuracy", said, re.MULTILINE)
    assert rounds == ["0", "1", "2"], "one line a round, once"
    assert "2 runs, 1 of them there already." in said
    shown = {kind for o in outputs for kind in o.get("data", {})}
    assert {"image/png", "text/html"} <= shown
    assert (tmp_path / "first-run.html").is_file()

    ten, one = re.findall(r"^(\d+) a class: ([\d.]+) (\d+) bytes up$", said, re.MULTILINE)
    assert (ten[0], one[0]) == ("10", "1")
    assert float(ten[1]) > 0.8
    assert int(ten[2]) > 5 * int(one[2]) > 0
