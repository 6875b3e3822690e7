"""Which modules a module imports, and what those import: read from their source, nothing is executed.

An ``__init__.py`` that only hands on what its modules define is a window: ``from common.wire import Weights`` leads to
the file of ``Weights`` and to no other payload's. One that does so by ``__getattr__``, when a name is first asked for,
states for type checkers what stands behind its names, and is read by that.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from common.code.fingerprint import PACKAGES, ROOT

MADE: dict[str, Path] = {}
"""Files of source by module, of what Python finds without a file of that name: the running program."""


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
    digest : str
        The SHA-256 of its statements, without comments, docstrings and layout.
    """

    imports: tuple[Import, ...]
    handed_on: Mapping[str, Import] | None
    digest: str


@dataclass
class Sources:
    """The source of the app and of a user's own modules, found by module; installed packages are none of it.

    A file is read once, as a process imports it once; with ``again`` it is read again when it has changed.
    """

    root: Path = ROOT
    again: bool = False
    _read: dict[Path, tuple[tuple[int, int], Source]] = field(default_factory=dict)
    _found: dict[str, Path | None] = field(default_factory=dict)

    def path(self, module: str) -> Path | None:
        """Return a module's file; None for what is installed, built in or not there."""
        if module not in self._found:
            self._found[module] = self._sought(module)
        return self._found[module]

    def _sought(self, module: str) -> Path | None:
        if module in MADE:
            return MADE[module]
        top, _, rest = module.partition(".")
        home = self.root if top in PACKAGES else _home(top)
        if home is None:
            return None
        stem = home.joinpath(top, *rest.split(".") if rest else ())
        for path in (stem / "__init__.py", stem.with_name(f"{stem.name}.py")):
            if path.is_file():
                return path
        return None

    def of(self, module: str, path: Path) -> Source:
        """Return what the file of ``module`` says."""
        known = self._read.get(path)
        if known is not None and not self.again:
            return known[1]
        stat = path.stat()
        stamp = (stat.st_mtime_ns, stat.st_size)
        if known is None or known[0] != stamp:
            known = self._read[path] = (stamp, parse(path.read_bytes(), module, path.stem))
        return known[1]

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
        self._found = {}  # a file may have come or gone since; within one closure it is asked for many times
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
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # half written, or no Python: what it says is all that it is
        return Source((), None, hashlib.sha256(content).hexdigest())
    package = module if stem == "__init__" else module.rpartition(".")[0]
    body = [node for node in tree.body if not _is_text(node)]
    lazy = stem == "__init__" and any(map(_is_getattr, body))
    seen = list(ast.walk(tree) if lazy else _statements(tree))
    imports = tuple(found for node in seen for found in _imports(node, package))
    only = stem == "__init__" and all(_hands_on(node, lazy) for node in body)
    names = {name: one for node in seen for name, one in _bound(node, package)} if only else None
    return Source(imports, names, hashlib.sha256(_plain(tree).encode()).hexdigest())


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


def _plain(tree: ast.Module) -> str:
    """Write a tree without its texts that stand for themselves."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                kept = [statement for statement in block if not _is_text(statement)]
                setattr(node, name, kept or ([ast.Pass()] if block and name == "body" else kept))
    return ast.unparse(tree)


@cache
def _home(top: str) -> Path | None:
    """Return the folder in which a user's own top-level module or package lies; None for what is installed."""
    if top in sys.stdlib_module_names:
        return None
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    packages = list(spec.submodule_search_locations or ())
    place = packages[0] if packages else spec.origin
    path = Path(place or "").resolve()
    if not path.exists() or any(path.is_relative_to(installed) for installed in _installed()):
        return None
    return path.parent


@cache
def _installed() -> tuple[Path, ...]:
    names = ("purelib", "platlib", "stdlib")
    places = [sysconfig.get_path(name) for name in names]
    places += [*site.getsitepackages(), site.getusersitepackages()]
    # those of another environment, which a .pth file or PYTHONPATH adds
    places += [one for one in sys.path if Path(one).name in ("site-packages", "dist-packages")]
    return tuple(Path(place).resolve() for place in places)
