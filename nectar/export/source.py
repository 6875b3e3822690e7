"""Where the code of a run's model comes from, and what an exported folder can do about it."""

from __future__ import annotations

import ast
import site
import sys
import sysconfig
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Literal

from common.code.imports import is_import_path, load

COPY = "network.py"
"""The name that the copy of a user's own module has in an exported folder."""

_AT_HAND = {"torch", "torchvision"}


@dataclass(frozen=True)
class Source:
    """The code of a model.

    Attributes
    ----------
    kind : str
        ``nectar``: a model of Nectar's, joined into model.py. ``package``: a callable of an installed package, which
        model.py imports. ``file``: a module of the user's own that one file holds, copied as ``network.py``.
        ``missing``: one that cannot be copied.
    packages : tuple of str
        What must be installed beside torch and safetensors, by the names to install.
    file : Path, optional
        The module's file, of kind ``file``.
    reason : str
        Why the code cannot be copied, of kind ``missing``.
    """

    kind: Literal["nectar", "package", "file", "missing"]
    packages: tuple[str, ...] = ()
    file: Path | None = None
    reason: str = ""


def source_of(model_name: str) -> Source:
    """Return where the code of the model called ``model_name`` comes from.

    Parameters
    ----------
    model_name : str
        A name of Nectar's table, or ``package.module:callable`` that can be imported.
    """
    if not is_import_path(model_name):
        return Source("nectar")
    load(model_name)
    name = model_name.partition(":")[0]
    module = sys.modules[name]
    place = getattr(module, "__file__", None)
    top = name.partition(".")[0]
    if place is None or _is_installed(Path(place)):
        return Source("package", (*packages_distributions().get(top, [top])[:1],))
    file = Path(place)
    if file.suffix != ".py":
        return Source("missing", reason=f"{name} is not a Python source file")
    tops = _imported(file)
    foreign = sorted(tops - _AT_HAND - sys.stdlib_module_names)
    if foreign:
        return Source("missing", reason=f"{file.name} imports {', '.join(foreign)}")
    return Source("file", tuple(sorted(tops & {"torchvision"})), file)


def _is_installed(file: Path) -> bool:
    """Tell a package that a package manager put there from a module that somebody works on."""
    paths = sysconfig.get_paths()
    places = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    places |= {*site.getsitepackages(), site.getusersitepackages()}
    real = file.resolve()
    below = [Path(place).resolve() for place in places]
    return any(real.is_relative_to(place) for place in below)


def _imported(file: Path) -> set[str]:
    """Return the packages that a file imports anywhere in it; a relative import by its dots."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level or (node.module or "").partition(".")[0])
    return found
