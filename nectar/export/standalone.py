"""Several modules of the source tree as one file that imports none of them."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Sequence
from types import ModuleType

from common.code.fingerprint import PACKAGES


def join(modules: Sequence[ModuleType], title: str) -> str:
    """Return one module's source that holds ``modules`` in their order, under the docstring ``title``.

    Their imports of each other are left out, all others stand once at the top; what only type checkers read goes.

    Raises
    ------
    ValueError
        If two of them define one name, or one imports another under another name or within a function.
    """
    imports: set[str] = set()
    parts, names = [], Counter[str]()
    for module in modules:
        source = inspect.getsource(module)
        tree = ast.parse(source)
        names.update(_defined(tree))
        imports |= _foreign_imports(tree)
        _require_plain_imports(tree, module.__name__)
        parts.append(_section(module.__name__, source, tree))
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise ValueError(f"{', '.join(twice)} is defined by more than one of the joined modules")
    head = f'"""{title}"""\n\nfrom __future__ import annotations\n\n' + "\n".join(sorted(imports))
    return "\n\n\n".join([head, *parts]) + "\n"


def _section(name: str, source: str, tree: ast.Module) -> str:
    """Return the module's code, headed by its name, with its docstring as a comment and without its imports."""
    dropped = {
        number
        for place, node in enumerate(tree.body)
        if _is_import(node) or (place == 0 and ast.get_docstring(tree) is not None)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = source.splitlines()
    kept = "\n".join(line for number, line in enumerate(lines, 1) if number not in dropped)
    said = (ast.get_docstring(tree) or "").partition("\n")[0]
    return f"# {name}: {said}\n\n{kept.strip()}"


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom) or _is_for_type_checkers(node)


def _is_for_type_checkers(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def _is_ours(module: str | None) -> bool:
    return (module or "").partition(".")[0] in PACKAGES


def _foreign_imports(tree: ast.Module) -> set[str]:
    """Return the import statements that stay, one name each."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            found |= {ast.unparse(ast.Import([alias])) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not _is_left_out(node.module):
            found |= {ast.unparse(ast.ImportFrom(node.module, [alias], 0)) for alias in node.names}
    return found


def _is_left_out(module: str | None) -> bool:
    return module == "__future__" or _is_ours(module)


def _require_plain_imports(tree: ast.Module, name: str) -> None:
    """Refuse an import of our own that leaving out would not make good."""
    top = [node for node in tree.body if _is_import(node)]
    within = {id(inner) for node in top for inner in ast.walk(node)}
    for node in ast.walk(tree):
        renamed = isinstance(node, ast.ImportFrom) and any(alias.asname for alias in node.names)
        ours = (isinstance(node, ast.ImportFrom) and _is_ours(node.module)) or (
            isinstance(node, ast.Import) and any(_is_ours(alias.name) for alias in node.names)
        )
        plain = id(node) in within and isinstance(node, ast.ImportFrom) and not renamed
        if ours and not plain:
            raise ValueError(f"{name}, line {getattr(node, 'lineno', 0)}: cannot be joined")


def _defined(tree: ast.Module) -> set[str]:
    """Return the names that a module's own statements bind."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {
                name.id
                for target in targets
                for name in ast.walk(target)
                if isinstance(name, ast.Name)
            }
    return found
