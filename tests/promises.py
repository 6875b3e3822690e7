"""Write the tables of docs/promised.md from the marks ``promise`` of the tests: ``python -m tests.promises``.

A mark has the heading of its section, the promise, and what else shows it (``also``, Markdown). It stands at a test,
or as ``pytestmark`` at a file of which all tests show the promise. The same promise at several places is one row.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "promised.md"
HEAD = "| promise | shown by |\n|---|---|\n"


class Shown(NamedTuple):
    """One mark: the section's heading, the promise, and where it is shown."""

    section: str
    promise: str
    by: str


def _marks(tree: ast.AST) -> Iterator[tuple[ast.Call, str | None]]:
    """Return the calls of ``pytest.mark.promise`` in a file, each with the test it decorates, if any."""
    decorated = {
        id(call): function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for call in function.decorator_list
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.promise":
            yield node, decorated.get(id(node))


def shown() -> list[Shown]:
    """Return every mark, by file."""
    found = []
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.promise" not in text:
            continue
        name = path.relative_to(TESTS.parent).as_posix()
        for call, test in _marks(ast.parse(text)):
            section, promise = (ast.literal_eval(argument) for argument in call.args)
            by = [f"`{name}::{test}`" if test else f"`{name}`"]
            by += [ast.literal_eval(word.value) for word in call.keywords]
            found.append(Shown(section, promise, ", ".join(by)))
    return found


def page(text: str) -> str:
    """Return the page with its tables made anew.

    Raises:
        ValueError: A mark names a section that the page has not.
    """
    rows: dict[str, dict[str, list[str]]] = {}
    for mark in shown():
        rows.setdefault(mark.section, {}).setdefault(mark.promise, []).append(mark.by)
    for section, promises in rows.items():
        table = "".join(f"| {promise} | {', '.join(by)} |\n" for promise, by in promises.items())
        heading = re.compile(
            rf"(^## {re.escape(section)}\n(?:(?!## ).*\n)*?)\| promise .*\n(?:\|.*\n)*",
            re.MULTILINE,
        )
        found = heading.search(text)
        if found is None:
            raise ValueError(f"{PAGE.name} has no section {section!r} with a table")
        text = text[: found.end(1)] + HEAD + table + text[found.end() :]
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
