"""What modules may import of other packages, and that a run's fingerprint covers the modules that it executes.

Who of ours may import whom is checked by ``lint-imports``, by the contracts in pyproject.toml.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

import pytest
from import_graph import GRAPH, PACKAGES, reached
from places import ROOT

from common.config.code_fingerprint import built_on, files_of
from common.methods import FOREIGN_CLIENT, METHODS

# Flower's documented packages; everything else of it is private and may change with any release.
FLOWER_PUBLIC = (
    "flwr.app",
    "flwr.client",
    "flwr.clientapp",
    "flwr.common",
    "flwr.server",
    "flwr.serverapp",
    "flwr.serverapp.strategy",
    "flwr.simulation",
)
FLOWER_PRIVATE_AT = {
    "nectar/engines/local_grid.py",
    "nectar/engines/site/clientapp.py",
    "nectar/engines/flower/superlink.py",
}


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("synth", {"torch", "synth"}),
        ("common.models", {"torch", "safetensors", "common.models", "common.storage"}),
    ],
)
def test_mathematics_imports_torch_alone(package: str, allowed: set[str]) -> None:
    for module in {package, *GRAPH.find_descendants(package)}:
        for name in GRAPH.find_modules_directly_imported_by(module):
            is_allowed = any(f"{name}.".startswith(f"{other}.") for other in allowed)
            assert is_allowed or name in sys.stdlib_module_names, f"{module} imports {name}"


def _of_flower(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.partition(".")[0] == "flwr")
        elif isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("flwr."):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.extended
def test_what_flower_keeps_private_is_imported_in_three_files_alone() -> None:
    found = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            names = _of_flower(path.read_text(encoding="utf-8"))
            # a module directly in a public package is public, too
            if any({name, name.rpartition(".")[0]}.isdisjoint(FLOWER_PUBLIC) for name in names):
                found.add(path.relative_to(ROOT).as_posix())
    assert found == FLOWER_PRIVATE_AT


def test_only_central_training_reaches_a_reader_of_data_sets() -> None:
    for module in ("strategies.scaffold", "strategies.feddm"):
        assert not [name for name in reached([module]) if name.startswith("common.data.")]


def _owners() -> dict[str, str]:
    """Return the method of each module that is one's own."""
    return {
        file.removesuffix(".py").replace("/", "."): name
        for name, method in METHODS.items()
        for file in files_of(method)
    }


def test_a_run_is_known_by_all_that_it_executes() -> None:
    """Of a method's files those of the methods that its entry builds on are counted, and shared files reach none."""
    owners = _owners()
    short = {}
    for name in METHODS:
        used = built_on([name])
        own = [module for module, owner in owners.items() if owner == name]
        if beyond := {m for m in reached(own) if owners.get(m, FOREIGN_CLIENT) not in used}:
            short[name] = beyond
    assert short == {}
    bundled = [package for package in PACKAGES if package != "nectar"]
    shared = {m for p in bundled for m in (p, *GRAPH.find_descendants(p))} - owners.keys()
    assert {owners[module] for module in reached(shared) if module in owners} == {FOREIGN_CLIENT}
