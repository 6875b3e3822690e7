"""The page of promises: every row names a test that is there, or a command that is."""

from __future__ import annotations

import re

import pytest
from places import ROOT

PAGE = (ROOT / "docs" / "promised.md").read_text(encoding="utf-8")
HEAD = "| promise | before | now | shown by |"
ROWS = [
    line
    for line in PAGE.splitlines()
    if line.startswith("| ") and line != HEAD and not line.startswith("|---")
]


@pytest.mark.parametrize("row", ROWS)
def test_a_promise_names_what_shows_it(row: str) -> None:
    *_, shown_by, _ = re.split(r"(?<!\\)\|", row)
    named = re.findall(r"`([^`]+)`", shown_by)
    assert named, "the row names no test and no command"
    for name in named:
        path, _, test = name.partition("::")
        if not path.startswith("tests/"):
            continue
        assert (ROOT / path).is_file(), path
        if test:
            assert re.search(rf"def {re.escape(test)}\b", (ROOT / path).read_text("utf-8")), name
