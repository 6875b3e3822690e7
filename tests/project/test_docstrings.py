"""A docstring documents what is there, under the name that it has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from places import ROOT

PACKAGES = ("common", "client_app", "server_app", "strategies", "synth", "nectar")


def documented(node: ast.ClassDef | ast.FunctionDef) -> Iterator[str]:
    """Yield the names under Parameters and Attributes of a docstring."""
    lines = (ast.get_docstring(node) or "").split("\n")
    heading = ""
    for line, rule in zip(lines, [*lines[1:], ""], strict=True):
        if rule.startswith("---"):
            heading = line
        elif heading in ("Parameters", "Attributes") and re.match(r"[a-z*]", line):
            yield from (name.strip(" *") for name in line.partition(" : ")[0].split(","))


def named(node: ast.AST) -> Iterator[str]:
    """Yield whatever a class or a function takes, has and reads by name."""
    for part in ast.walk(node):
        if isinstance(part, ast.arg):
            yield part.arg
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            yield part.target.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.FunctionDef):
            yield part.name


@pytest.mark.sweep
@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_docstring_documents_is_there_under_that_name(package: str) -> None:
    missing = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        for name in sorted({*documented(node)} - {*named(node)})
        if name.isidentifier()
    ]
    assert missing == []
