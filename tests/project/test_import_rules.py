"""Who may import whom: the design's dependency rules, read from the source of every module.

Imports inside functions and under TYPE_CHECKING count too: a dependency that is hidden is still one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from closures import closure
from import_closure import Sources
from places import ROOT

from common.config.code_fingerprint import built_on, files_of
from common.methods import FOREIGN_CLIENT, METHODS

PACKAGES = ("client_app", "common", "nectar", "server_app", "strategies", "synth")
OUTSIDE = {"tests", "benchmarks", "docker", "docs"}

BUNDLED = {"client_app", "common", "server_app", "strategies", "synth"}

MATHEMATICS = {"torch", "synth"}
FORBIDDEN = {
    "synth": {"nectar"},
    "common": {"client_app", "server_app", "strategies", "nectar"},
    "client_app": {"server_app", "strategies", "nectar"},
    "strategies": {"client_app", "server_app", "nectar"},
    "server_app": {"client_app", "nectar"},
    # it reaches the ClientApp by its import path, as Flower does
    "nectar": {"client_app", "synth"},
}
# An audit attacks the mechanisms themselves, whose mathematics these are.
ATTACKED = {"nectar/audit": {"synth"}}
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
FLOWER_PRIVATE_AT = (
    "nectar/engines/local_grid.py",
    "nectar/engines/site/clientapp.py",
    "nectar/engines/flower/control.py",
)


def imports(source: str, package: str) -> Iterator[str]:
    """Yield the dotted modules that a module of ``package`` imports, relative ones resolved."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            # "from common import models" imports common.models; a class or a function does no harm here.
            yield from (f"{module}.{alias.name}" for alias in node.names)


def broken(path: str, source: str) -> list[str]:
    """Return what the module at ``path`` (relative to the root) imports against the rules."""
    parts = Path(path).with_suffix("").parts
    package = ".".join(parts[:-1])
    names = set(imports(source, package))
    tops = {name.split(".")[0] for name in names}
    forbidden = FORBIDDEN.get(parts[0], set()) - ATTACKED.get("/".join(parts[:2]), set())
    found = [f"{path} imports {top}" for top in tops & (OUTSIDE | forbidden)]
    if parts[:2] == ("nectar", "engines") and parts[2] in ("site", "processes"):
        found += [f"{path} imports {top}: a fork has it from its bundle" for top in tops & BUNDLED]
    if parts[0] == "synth":
        found += [
            f"{path} imports {top}: torch only"
            for top in tops - MATHEMATICS - sys.stdlib_module_names
        ]
    if parts[:2] == ("common", "models"):
        found += [
            f"{path} imports {name}: torch, and files of tensors, only"
            for name in names
            if name.split(".")[0] not in {"torch", "safetensors"} | sys.stdlib_module_names
            and not f"{name}.".startswith(("common.models.", "common.storage."))
        ]
    if path not in FLOWER_PRIVATE_AT:
        found += [f"{path} imports private {name}" for name in names if _private_flower(name)]
    return sorted(set(found))


def _private_flower(name: str) -> bool:
    """Return whether a dotted name lies in Flower, but neither is nor is directly in a public package."""
    if name.split(".")[0] != "flwr":
        return False
    return not any(name in (public, f"{public}.{name.split('.')[-1]}") for public in FLOWER_PUBLIC)


def _modules() -> list[str]:
    return sorted(
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    )


def test_every_module_keeps_the_rules():
    modules = _modules()
    assert {Path(module).parts[0] for module in modules} == set(PACKAGES)
    found = [line for path in modules for line in broken(path, (ROOT / path).read_text("utf-8"))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("synth/a.py", "import numpy"),
        ("synth/a.py", "from common.models import build"),
        ("synth/a.py", "def f():\n    import flwr"),
        ("common/models/a.py", "from common.errors import ConfigError"),
        ("common/models/a.py", "from ..seeding import generator"),
        ("common/models/a.py", "from synth.starts import sample_ball"),
        ("common/a.py", "from strategies import feddm"),
        ("common/data/a.py", "if TYPE_CHECKING:\n    import server_app.app"),
        ("client_app/a.py", "import strategies.base"),
        ("strategies/a.py", "from client_app.device import DeviceClient"),
        ("strategies/a.py", "from flwr.superlink.x import y"),
        ("server_app/a.py", "from client_app.app import app"),
        ("server_app/a.py", "import benchmarks.measure"),
        ("server_app/a.py", "from nectar.charts import lines"),
        ("common/a.py", "import nectar"),
        ("nectar/a.py", "from client_app.app import app"),
        ("nectar/a.py", "from synth.starts import sample_ball"),
        ("nectar/audit/a.py", "from client_app.app import app"),
        ("client_app/a.py", "from flwr.server.superlink.fleet import vce"),
        ("nectar/engines/site/parent.py", "from flwr.supernode.cli import flwr_clientapp"),
        ("nectar/engines/site/parent.py", "from common.errors import ConfigError"),
        ("nectar/engines/site/__main__.py", "import common"),
        ("nectar/engines/site/forks.py", "import common"),
    ],
)
def test_a_broken_rule_is_seen(path, source):
    assert broken(path, source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("synth/a.py", "import math\nfrom torch.nn import functional\nfrom synth.starts import x"),
        (
            "common/models/a.py",
            "from common.models import build\nfrom .cnn import CNN\nimport torch",
        ),
        ("nectar/engines/local_grid.py", "from flwr.supercore.task_identity import TaskIdentity"),
        ("nectar/engines/site/clientapp.py", "from flwr.supernode.cli import flwr_clientapp"),
        ("client_app/a.py", "from synth.starts import noise_start\nfrom common import seeding"),
        ("server_app/a.py", "from server_app.loop import run\nfrom flwr.serverapp import Grid"),
        ("strategies/a.py", "from flwr.serverapp.strategy import FedAvg"),
    ],
)
def test_what_is_allowed_passes(path, source):
    assert broken(path, source) == []


# ---- a method's file drags in what a method needs ----------------------------------------------------


def test_scaffolds_strategy_reaches_few_files_and_lines() -> None:
    files, lines = closure("strategies.scaffold")
    assert files <= 72  # fewer, larger files: one that is reached counts whole
    assert lines <= 12_600


def test_no_strategy_but_central_reaches_a_reader_of_data_sets() -> None:
    sources = Sources()
    for module in ("strategies.scaffold", "strategies.fedssyn", "strategies.feddm"):
        found = sources.closure([module], windows=True)
        readers = {name for name in found if name.startswith("common.data.")}
        if module != "strategies.fedssyn":  # which trains as central does where it stands around it
            assert readers == set()


def _owners() -> dict[str, str]:
    """Return the method of each module that is one's own."""
    return {
        file.removesuffix(".py").replace("/", "."): name
        for name, method in METHODS.items()
        for file in files_of(method)
    }


def test_a_run_is_known_by_all_that_it_executes() -> None:
    """Of a method's files those of the methods that its entry builds on are counted, and shared files reach none."""
    owners, sources = _owners(), Sources()
    short = {}
    for name, method in METHODS.items():
        used = built_on([name])
        starts = [
            module for module, owner in owners.items() if owner == name and sources.path(module)
        ]
        reached = sources.closure(starts)
        if beyond := {m for m in reached if owners.get(m, FOREIGN_CLIENT) not in used}:
            short[name] = beyond
        assert all((ROOT / f"{part.replace('.', '/')}.py").is_file() for part in method.parts)
    assert short == {}
    shared = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in BUNDLED
        for path in (ROOT / package).rglob("*.py")
    ]
    reached = sources.closure([module for module in shared if module not in owners])
    assert {owners[module] for module in reached if module in owners} == {FOREIGN_CLIENT}
