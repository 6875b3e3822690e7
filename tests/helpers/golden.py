"""Texts that are compared as a whole with a committed file; ``pytest --accept`` writes what is said now."""

from __future__ import annotations

from pathlib import Path

import pytest

_MARGIN = "    "


def read(path: Path) -> dict[str, str]:
    """Return the texts of a file of ``id: text``, whose further lines are indented."""
    found: dict[str, str] = {}
    key = ""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        if line.startswith(_MARGIN) or not line:
            found[key] += f"\n{line.removeprefix(_MARGIN)}"
        else:
            key, _, found[key] = line.partition(": ")
    return found


def write(path: Path, texts: dict[str, str]) -> None:
    """Write the texts, in the order of their ids."""
    lines = []
    for key in sorted(texts):
        first, *rest = texts[key].split("\n")
        lines += [f"{key}: {first}", *(f"{_MARGIN}{line}".rstrip() for line in rest)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def assert_sentence(config: pytest.Config, path: Path, key: str, text: str) -> None:
    """Hold a text against the one of its id in a file of many."""
    if config.getoption("accept"):
        write(path, read(path) | {key: text})
    assert text == read(path).get(key), "see `pytest --accept`"


def assert_file(config: pytest.Config, path: Path, text: str) -> None:
    """Hold a text against a file of its own."""
    if config.getoption("accept"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "see `pytest --accept`"
