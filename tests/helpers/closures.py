"""What a reader of a method's file has to hold in mind: all that it imports, and what that imports.

    python tests/helpers/closures.py

prints files and lines for each method and side. Packages' ``__init__.py`` count with all that they import, and so do
imports in functions and lazy ones; what only a type checker sees does not.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from import_closure import Sources

from common.methods import METHODS


def closure(module: str, sources: Sources | None = None) -> tuple[int, int]:
    """Return the number of files and of lines."""
    found = (sources or Sources()).closure([module], windows=True).values()
    return len(found), sum(len(path.read_text(encoding="utf-8").splitlines()) for path in found)


def main() -> None:
    """Print the table."""
    sources = Sources()
    print(f"{'method':10}{'server: files':>15}{'lines':>8}{'site: files':>15}{'lines':>8}")
    for name, method in METHODS.items():
        sides = [
            closure(path.partition(":")[0], sources) for path in (method.strategy, method.client)
        ]
        print(f"{name:10}" + "".join(f"{files:>15}{lines:>8,}" for files, lines in sides))


if __name__ == "__main__":
    main()
