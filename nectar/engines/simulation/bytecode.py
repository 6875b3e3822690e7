"""One compilation of a module for all of a run's processes, where Python may not keep it beside the module.

A dozen processes import the same packages. Where these came without bytecode, and PYTHONDONTWRITEBYTECODE is set as in
many container images, each would compile them anew: half of the seconds that a start takes.
"""

import contextlib
import sys
from collections.abc import Iterator
from importlib.util import cache_from_source, find_spec
from pathlib import Path

_LARGE = ("fastapi", "flwr", "pydantic", "ray", "torch")


def variables(directory: Path) -> dict[str, str]:
    """Give the variables that make a run's processes keep their bytecode in its `directory`, if they need any."""
    if not _lacking():
        return {}
    # Empty is unset to Python.
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder(directory))}


@contextlib.contextmanager
def shared(directory: Path) -> Iterator[None]:
    """Let what this process imports within share the bytecode of the run's processes."""
    before = sys.dont_write_bytecode, sys.pycache_prefix
    if _lacking():
        sys.dont_write_bytecode, sys.pycache_prefix = False, str(folder(directory))
    try:
        yield
    finally:
        sys.dont_write_bytecode, sys.pycache_prefix = before


def folder(directory: Path) -> Path:
    """Give where the bytecode of the run in `directory` lies, if it is kept."""
    return directory / "bytecode"


def _lacking() -> bool:
    """Whether Python may write no bytecode, and one of the packages that take longest was installed without."""
    return sys.dont_write_bytecode and not all(map(_compiled, _LARGE))


def _compiled(package: str) -> bool:
    found = find_spec(package)
    if found is None or found.origin is None:
        return True
    return Path(cache_from_source(found.origin)).is_file()
