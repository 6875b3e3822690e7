"""The bundle that Flower ships to every site holds what runs there or at the server, and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from import_graph import reached
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from places import ROOT

from common.methods import METHODS, resolve
from common.models.registry import MODELS
from nectar.engines.flower.plain_command import scripts_directory
from nectar.engines.flower.superlink import own_bundle

APPS = ("server_app.app", "client_app.app")
MOST_BYTES = 2_300_000
#: of a generator's weights, which no person reads
MOST_WEIGHTS = 300_000


def carried() -> set[Path]:
    """Return the files that travel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {p for glob in project["tool"]["flwr"]["app"]["fab-include"] for p in ROOT.glob(glob)}


def named() -> set[str]:
    """Return the modules that the registries name by import path."""
    methods = [p for m in METHODS.values() for p in (m.strategy, m.client, m.settings)]
    models = [model.path for model in MODELS.values()]
    foreign = resolve("flwr.serverapp.strategy:FedAvg").client
    return {path.partition(":")[0] for path in (*methods, foreign, *models)}


def needed() -> set[Path]:
    """Return the files of the modules that the apps and the registries reach."""
    modules = reached([*APPS, *named()])
    places = [ROOT / module.replace(".", "/") for module in modules]
    return {p / "__init__.py" if p.is_dir() else p.with_suffix(".py") for p in places}


def build(app: Path, folder: Path) -> Path:
    """Return the bundle of an app, built in ``folder``."""
    folder.mkdir(exist_ok=True)
    subprocess.run(
        [scripts_directory() / "flwr", "build", "--app", app],
        cwd=folder,
        env=os.environ | {"FLWR_HOME": str(folder / "home"), "FLWR_TELEMETRY_ENABLED": "0"},
        check=True,
        capture_output=True,
    )
    (bundle,) = folder.rglob("*.fab")
    return bundle


def test_every_file_of_code_is_imported_by_one_of_the_apps() -> None:
    idle = {path for path in carried() if path.suffix == ".py"} - needed()
    assert sorted(path.relative_to(ROOT).as_posix() for path in idle) == [], (
        "move to nectar/ what only a person uses"
    )


def test_every_file_that_the_apps_import_travels() -> None:
    assert needed() <= carried()


@pytest.mark.extended
def test_what_is_submitted_is_the_bundle_that_flower_builds(tmp_path: Path) -> None:
    """A site that pins the app knows one checksum."""
    assert own_bundle() == build(ROOT, tmp_path).read_bytes()


@pytest.mark.extended
def test_it_is_small_enough_to_be_read(tmp_path: Path) -> None:
    """A site that pins the app has to read it."""
    for path in [*carried(), ROOT / "pyproject.toml", ROOT / "LICENSE"]:
        to = tmp_path / "app" / path.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)
    bundle = build(tmp_path / "app", tmp_path)
    weights = sum(path.stat().st_size for path in carried() if path.suffix == ".json")
    assert weights < MOST_WEIGHTS
    assert bundle.stat().st_size - weights < MOST_BYTES


# ---- by which versions, and that a site needs no Ray -------------------------------------------------


PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINS: list[str] = PROJECT["tool"]["uv"]["constraint-dependencies"]
SIMULATION: list[str] = PROJECT["project"]["optional-dependencies"]["simulation"]
DEVELOPERS: list[str] = PROJECT["dependency-groups"]["dev"]


def direct() -> list[Requirement]:
    """Return what pyproject.toml asks for, with all extras and for developers."""
    extras = PROJECT["project"]["optional-dependencies"].values()
    groups = [PROJECT["project"]["dependencies"], *extras, DEVELOPERS]
    return [Requirement(need) for group in groups for need in group]


def test_what_is_asked_for_is_pinned_once_to_a_version_in_its_range() -> None:
    pins = {}
    for pin in PINS:
        name, _, version = pin.partition("==")
        assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", pin), pin
        assert name == canonicalize_name(name)
        assert name not in pins, name
        pins[name] = version
    for need in direct():
        assert need.specifier.contains(pins[canonicalize_name(need.name)]), need


def test_ray_is_for_simulations_and_tests_alone() -> None:
    assert not [n for n in PROJECT["project"]["dependencies"] if re.search(r"\bray\b|\[sim", n)]
    assert [Requirement(need).extras for need in SIMULATION] == [{"simulation"}]
    assert "flwr[simulation]" in DEVELOPERS
