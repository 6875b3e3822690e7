"""The lines of docs/compare.md that train another network on an export do so."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from data_files import idx_bytes
from federation import run
from places import ROOT

from nectar.export.bundle import export
from nectar.records.past_run import PastRun

PAGE = ROOT / "docs" / "compare.md"
RAW = Path("MNIST") / "raw"
HEADING = "Train any network on the synthetic images"


def snippet(text: str) -> str:
    """Return the first Python block below the heading."""
    _, found, rest = text.partition(f"{HEADING}\n")
    assert found, f"docs/compare.md has no heading {HEADING!r}"
    block = re.search(r"^```python\n(.*?)^```$", rest, re.DOTALL | re.MULTILINE)
    assert block is not None
    return block[1]


def shortened(raw: Path, to: Path) -> None:
    """Lay out MNIST with the first 2,000 of its test images, which judge as well."""
    to.mkdir(parents=True)
    for path in raw.iterdir():
        if path.name.startswith("train"):
            (to / path.name).symlink_to(path)
    for name, shape in (("images-idx3", (2000, 28, 28)), ("labels-idx1", (2000,))):
        content = (raw / f"t10k-{name}-ubyte").read_bytes()
        values = np.frombuffer(content, np.uint8, math.prod(shape), offset=4 + 4 * len(shape))
        (to / f"t10k-{name}-ubyte").write_bytes(idx_bytes(values.reshape(shape)))


@pytest.mark.long
@pytest.mark.extended
def test_the_page_s_lines_train_another_network(tmp_path: Path) -> None:
    """On a smaller run than the page's; with chance at a tenth, a network that learned nothing shows."""
    data = Path(os.environ.get("NECTAR_DATA", "/nowhere"))
    if not (data / RAW / "t10k-images-idx3-ubyte").is_file():
        pytest.skip("MNIST is not below NECTAR_DATA")
    record = run(
        {
            "experiment": "feddm-mnist-alpha0.1-small",
            "rounds": 1,
            "output-dir": str(tmp_path / "runs"),
            "data-dir": str(data),
            "set": "federation.sites=2 partition.alpha=1 data.images=2000 feddm.iterations=10 "
            "image_training.epochs=5 evaluation.on=none",
        }
    )
    export(PastRun.open(record.directory), tmp_path / "mnist-export")
    shortened(data / RAW, tmp_path / "data" / RAW)
    done = subprocess.run(
        [sys.executable, "-c", snippet(PAGE.read_text(encoding="utf-8"))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    accuracy = float(done.stdout.rpartition("test accuracy ")[2])
    assert accuracy > 0.5
