"""The fixed cost of a round: trivial devices and a trivial server, on Ray and in this process.

Every device sends one image a class and the server learns nothing from them, so what is left is messages,
validation and bookkeeping. Two runs, one after the other: their rounds are paired by number, which cancels
no drift of the machine. The first round, in which Ray's workers start, is left out.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.measure import Claim, Row
from nectar.cli import main as nectar

SETTINGS = [
    "method=real",
    "real.ipc=1",
    "image_training.epochs=0",
    "model.depth=1",
    "model.width=1",
    "evaluation.on=none",
    "partition.kind=iid",
]


def rows(pairs: int) -> list[Row]:
    """Measure with 10 and with 100 devices; in-process must not cost more than Ray."""
    return [_row(clients, pairs) for clients in (10, 100)]


def _row(clients: int, pairs: int) -> Row:
    words = [*SETTINGS, f"federation.sites={clients}", f"rounds={pairs + 1}"]
    with tempfile.TemporaryDirectory() as directory:
        on_ray = _rounds([*words, f"output-dir={directory}/ray"], Path(directory, "ray"), ray=True)
        local = _rounds(
            [*words, f"output-dir={directory}/here"], Path(directory, "here"), ray=False
        )
    claim = Claim(at_least=1.0)
    ratios = tuple(claim.ratio(a, b) for a, b in zip(on_ray, local, strict=True))
    name = f"round of {clients} devices, Ray then here"
    return Row(name, median(on_ray), median(local), ratios, claim)


def _rounds(words: list[str], output: Path, *, ray: bool) -> list[float]:
    """Run and return the seconds of every round behind the first."""
    if ray:
        command = [sys.executable, "-m", "nectar.cli", "simulate", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    else:
        with contextlib.redirect_stderr(io.StringIO()):
            nectar(["run", *words])
    (metrics,) = output.glob("*/metrics.jsonl")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()][2:]
    return [sum(v for k, v in line["seconds"].items() if k != "by_site") for line in lines]
