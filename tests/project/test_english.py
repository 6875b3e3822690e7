"""Words that no document and no message has: each is said more plainly in another way."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import ROOT

REFUSED = re.compile(
    r"\banew\b|\bin the place of\b|\blikest\b|\bbehind round\b|\bhangs on\b|\breckon", re.IGNORECASE
)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PACKAGES = ("common", "client_app", "server_app", "strategies", "synth", "nectar")


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string that is no docstring."""
    tree = ast.parse(source)
    beside = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in beside
        ):
            yield node.lineno, node.value


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_document_says_it_plainly(page: Path) -> None:
    assert REFUSED.findall(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_message_says_it_plainly(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text[:80]}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, text in messages(path.read_text(encoding="utf-8"))
        if REFUSED.search(text)
    ]
    assert found == []


def test_a_message_is_told_from_a_docstring() -> None:
    source = '"""Begun anew."""\nx = "begun anew"\n'
    assert [text for _, text in messages(source)] == ["begun anew"]


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
