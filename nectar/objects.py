"""What a Python caller gives as an object: the import path of a class, a function or a method of its own."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from common.code.imports import HERE
from common.config.code_fingerprint import MADE
from common.errors import ConfigError
from common.methods import Method

KEYS = ("method", "model.name", "dataset")
"""The settings that may be import paths."""


def is_named(given: Any) -> bool:
    """Whether an object can stand for an import path: a class, a function, a method."""
    return isinstance(given, Method | type) or inspect.isroutine(given)


def named(key: str, given: Any) -> str:
    """Return the import path of ``given``.

    What the running program itself defines, a script or a notebook, is found in this process alone.

    Raises
    ------
    ConfigError
        If no import path leads to it, as to a lambda or to what a function defines.
    """
    if isinstance(given, Method):
        module, name = _place_of(given)
    else:
        module, name = str(given.__module__), str(given.__qualname__)
    if not name or getattr(sys.modules.get(module), name, None) is not given:
        raise ConfigError(
            f"{key}={given!r:.60} cannot be found again by a name: give a class, a function or a Method that is "
            "defined at the top level of a module, a script or a notebook."
        )
    if module == HERE:
        MADE[HERE] = _source()
    return f"{module}:{name}"


def _place_of(method: Method) -> tuple[str, str]:
    """Return where a method is bound to a name: of the modules that hold it, one of its parts' package first."""
    home = method.settings.partition(":")[0].partition(".")[0]
    for module in sorted(sys.modules, key=lambda one: one.partition(".")[0] != home):
        content = getattr(sys.modules[module], "__dict__", {})
        for name, value in list(content.items()):
            if value is method:
                return module, name
    return "", ""


def _source() -> Path:
    """Return the file with what the running program defines, by which a run is known again; a notebook's is made."""
    main = vars(sys.modules[HERE])
    file = main.get("__file__")
    if file and Path(file).is_file():
        return Path(file).resolve()
    cells = main.get("In")  # all that IPython was given to execute
    if not isinstance(cells, list):
        raise ConfigError(
            "what is typed at this prompt cannot be read again: put it into a file, or use a notebook."
        )
    text = _definitions(map(str, cells)).encode()
    made = Path(_folder().name, f"{hashlib.sha256(text).hexdigest()}.py")
    made.write_bytes(text)
    return made


def _definitions(cells: Iterable[str]) -> str:
    """Return what cells define and import, and their constants; of one name the last."""
    kept: dict[str, str] = {}
    for cell in cells:
        try:
            tree = ast.parse(cell)
        except SyntaxError:  # it did not run either
            continue
        for node in tree.body:
            text = ast.unparse(node)
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                kept[node.name] = text
            elif isinstance(node, ast.Import | ast.ImportFrom):
                kept[text] = text
            elif isinstance(node, ast.Assign) and not any(map(_is_call, ast.walk(node))):
                kept[text.partition("=")[0]] = text
    return "\n".join(kept[name] for name in sorted(kept))


def _is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="nectar-")
