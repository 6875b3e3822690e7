"""Which module of ours imports which, read from their source by grimp; nothing is executed."""

from __future__ import annotations

from collections.abc import Iterable

import grimp

PACKAGES = ("client_app", "common", "nectar", "server_app", "strategies", "synth")

GRAPH = grimp.build_graph(*PACKAGES, include_external_packages=True, cache_dir=None)

#: without what only a type checker sees; but lazy packages state for it what is behind their names
_EXECUTED = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)
for _lazy in ("common.models", "nectar"):
    for _name in GRAPH.find_modules_directly_imported_by(_lazy) & _EXECUTED.modules:
        _EXECUTED.add_import(importer=_lazy, imported=_name)


def reached(starts: Iterable[str]) -> set[str]:
    """Return the modules ``starts`` of ours, all that they import, and the packages around these."""
    found: set[str] = set()
    left = set(starts) & _EXECUTED.modules
    while left:
        found |= left
        around = {name.rpartition(".")[0] for name in left if "." in name}
        imported = set().union(*map(_EXECUTED.find_modules_directly_imported_by, left))
        left = (around | imported) - found
    return found
