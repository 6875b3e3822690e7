"""Which modules a module imports, and what those import: read from their source, nothing is executed.

An ``__init__.py`` that only hands on what its modules define is a window: ``from common.wire import Weights`` leads to
the file of ``Weights`` and to no other payload's. One that does so by ``__getattr__``, when a name is first asked for,
states for type checkers what stands behind its names, and is read by that.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common.code.fingerprint import PACKAGES, ROOT


@dataclass(frozen=True)
class Import:
    """A module, and the names that are taken from it; without one it is the module itself that is imported."""

    module: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """What a file of source says.

    Parameters
    ----------
    imports : tuple of Import
        What it imports, inside functions too, but not for a type checker alone.
    handed_on : mapping of str to Import
        Of an ``__init__.py`` that only imports: where each of its names comes from. None of any other file.
    """

    imports: tuple[Import, ...]
    handed_on: Mapping[str, Import] | None


@dataclass
class Sources:
    """The app's source, found by module and read once."""

    root: Path = ROOT
    _read: dict[Path, Source] = field(default_factory=dict)
    _found: dict[str, Path | None] = field(default_factory=dict)

    def path(self, module: str) -> Path | None:
        """Return a module's file; None for what is not the app's."""
        if module not in self._found:
            self._found[module] = self._sought(module)
        return self._found[module]

    def _sought(self, module: str) -> Path | None:
        if module.partition(".")[0] not in PACKAGES:
            return None
        stem = self.root.joinpath(*module.split("."))
        places = (stem / "__init__.py", stem.with_name(f"{stem.name}.py"))
        return next((path for path in places if path.is_file()), None)

    def of(self, module: str, path: Path) -> Source:
        """Return what the file of ``module`` says."""
        if path not in self._read:
            self._read[path] = parse(path.read_bytes(), module, path.stem)
        return self._read[path]

    def closure(
        self,
        starts: Iterable[str],
        *,
        apart: Callable[[str], bool] = lambda module: False,
        windows: bool = False,
    ) -> dict[str, Path]:
        """Return the files of ``starts`` and of all that they import, by module.

        Parameters
        ----------
        apart : callable
            Whether a module is left out, and what only it imports.
        windows : bool
            Whether all is followed that an import executes: every ``__init__.py``, with all that it hands on.
        """
        found: dict[str, Path] = {}
        followed: set[Import] = set()
        queue = [target for start in starts for target in self._targets(Import(start), windows)]
        while queue:
            module = queue.pop()
            path = None if module in found or apart(module) else self.path(module)
            if path is None:
                continue
            found[module] = path
            for imported in self.of(module, path).imports:
                if imported not in followed:  # most modules import the same
                    followed.add(imported)
                    queue += self._targets(imported, windows)
        return dict(sorted(found.items()))

    def _targets(
        self, imported: Import, windows: bool, on_the_way: tuple[Import, ...] = ()
    ) -> Iterator[str]:
        """Yield the modules whose code an import needs.

        ``on_the_way`` are the imports that led here: a package may hand on a name that it takes from itself, such as a
        compiled module, which has no source.
        """
        on_the_way = (*on_the_way, imported)
        module = imported.module
        parts = module.split(".")
        for parent in (".".join(parts[:end]) for end in range(1, len(parts))):
            if windows or not self._is_window(parent):
                yield parent
        if not imported.names:
            yield module
        for name in imported.names:
            origin = self._handed_on(module).get(name)
            if windows or not self._is_window(module):
                yield module
            if self.path(f"{module}.{name}") is not None:
                yield f"{module}.{name}"
            elif origin is not None and origin not in on_the_way:
                yield from self._targets(origin, windows, on_the_way)
            else:
                yield module

    def _is_window(self, module: str) -> bool:
        path = self.path(module)
        return path is not None and self.of(module, path).handed_on is not None

    def _handed_on(self, module: str) -> Mapping[str, Import]:
        path = self.path(module)
        return (self.of(module, path).handed_on or {}) if path is not None else {}


def parse(content: bytes, module: str, stem: str) -> Source:
    """Read a file of source."""
    tree = ast.parse(content)
    package = module if stem == "__init__" else module.rpartition(".")[0]
    body = [node for node in tree.body if not _is_text(node)]
    lazy = stem == "__init__" and any(map(_is_getattr, body))
    seen = list(ast.walk(tree) if lazy else _statements(tree))
    imports = tuple(found for node in seen for found in _imports(node, package))
    only = stem == "__init__" and all(_hands_on(node, lazy) for node in body)
    names = {name: one for node in seen for name, one in _bound(node, package)} if only else None
    return Source(imports, names)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every node but those that only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if _is_for_types(node):
            for other in getattr(node, "orelse", ()):
                yield other
                yield from _statements(other)
            continue
        yield node
        yield from _statements(node)


def _is_for_types(node: ast.AST) -> bool:
    if not isinstance(node, ast.If):
        return False
    test = node.test
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def _is_getattr(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "__getattr__"


def _imports(node: ast.AST, package: str) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield Import(_absolute(node, package), tuple(alias.name for alias in node.names))


def _bound(node: ast.AST, package: str) -> Iterator[tuple[str, Import]]:
    """Yield the names that a statement of a window binds, and what stands behind each."""
    if isinstance(node, ast.ImportFrom):
        module = _absolute(node, package)
        for alias in node.names:
            yield alias.asname or alias.name, Import(module, (alias.name,))


def _absolute(node: ast.ImportFrom, package: str) -> str:
    parents = package.split(".")
    base = parents[: len(parents) - node.level + 1] if node.level else []
    return ".".join([*base, *([node.module] if node.module else [])])


def _hands_on(node: ast.stmt, lazy: bool) -> bool:
    """Whether a statement of an ``__init__.py`` does no more than hand names on."""
    if isinstance(node, ast.Assign):
        return lazy or all(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
    if lazy and (isinstance(node, ast.Import) or _is_for_types(node) or _is_getattr(node)):
        return True
    star = isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
    return isinstance(node, ast.ImportFrom) and not star


def _is_text(node: ast.stmt) -> bool:
    """Whether a statement is a docstring, or the text after an attribute."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
