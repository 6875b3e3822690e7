"""What one round of FedAvg enters: the files and functions that a reader of a round would have to follow."""

from __future__ import annotations

import ast
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from federation import run
from places import ROOT
from small import Small

from strategies.round import Rounds

PACKAGES = ("client_app", "common", "nectar", "server_app", "strategies", "synth")


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function's body without its docstring."""
    body = function.body
    has_doc = ast.get_docstring(function) is not None and len(body) > 1
    return (function.end_lineno or 0) - body[1 if has_doc else 0].lineno + 1


def entered_lines(file: str, starts: set[int]) -> int:
    """Return the lines of the bodies of the functions of a file that begin at ``starts``."""
    total = 0
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            total += body_lines(node) if first in starts else 0
    return total


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[int]]:
    """By file, the first lines of the functions that the second round of a run enters."""
    found: dict[str, set[int]] = defaultdict(set)
    whole = Rounds.run

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            file = path.relative_to(ROOT)
            if file.parts[0] in PACKAGES:
                found[str(file)].add(frame.f_code.co_firstlineno)

    def watched(self: Rounds, server_round: int, *args: Any, **named: Any) -> Any:
        if server_round != 2:
            return whole(self, server_round, *args, **named)
        before = sys.getprofile()
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            return whole(self, server_round, *args, **named)
        finally:
            sys.setprofile(before)
            threading.setprofile(None)

    monkeypatch.setattr(Rounds, "run", watched)
    return found


def test_the_second_round_of_fedavg_enters_few_files_and_lines(
    small: Small, entered: dict[str, set[int]]
) -> None:
    run(small(method="fedavg", rounds=2, set="federation.sites=2"))
    assert "strategies/fedavg.py" in entered
    assert len(entered) <= 66
    assert sum(entered_lines(file, starts) for file, starts in entered.items()) <= 2_320
