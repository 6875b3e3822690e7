"""The code of one round: the files, functions and lines that a method's second round enters.

    python -m benchmarks.round_size [METHOD]

Two sites on digits, in this process; the first round makes what is made only once. A function counts once for all
its calls, also a comprehension or a lambda; lines are those of named functions, from `def` or decorator to the end.
"""

from __future__ import annotations

import inspect
import logging
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from client_app.app import app
from common.code.fingerprint import PACKAGES
from common.config.loading import load
from nectar.engines.local_grid import LocalGrid
from server_app.app import serve

ROOT = Path(__file__).parents[1]


class Entered:
    """The functions of Nectar and Flower that are entered while it listens."""

    def __init__(self) -> None:
        self._seen: set[CodeType] = set()

    def __call__(self, line: dict[str, Any]) -> None:
        """Listen from the end of round 1 to the end of round 2."""
        listener = self._note if line["round"] == 1 else None
        threading.setprofile(listener)
        sys.setprofile(listener)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self._seen.add(frame.f_code)

    def row(self) -> str:
        """Return how many files, functions and lines these are, of Nectar's own."""
        folders = tuple(f"{ROOT / package}/" for package in (*PACKAGES, "nectar"))
        ours = [code for code in self._seen if code.co_filename.startswith(folders)]
        named = [code for code in ours if not code.co_name.startswith("<")]
        lines = sum(len(inspect.getsourcelines(code)[0]) for code in named)
        return f"{len({code.co_filename for code in ours})} | {len(ours)} | {lines:,}"


def entered(method: str) -> Entered:
    """Run two rounds of a method."""
    found = Entered()
    with tempfile.TemporaryDirectory() as folder:
        given = {
            "method": method,
            "rounds": 3,
            "output-dir": folder,
            "set": "federation.sites=2 data.images=100",
        }
        serve(LocalGrid(app, 2, given), load(given), on_round=found)
    sys.setprofile(None)
    return found


def main() -> None:
    """Print the table."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    method = sys.argv[1] if len(sys.argv) > 1 else "fedavg"
    print("| round 2, two sites | files | functions | lines |\n|---|---|---|---|")
    print(f"| {method} | {entered(method).row()} |")


if __name__ == "__main__":
    main()
