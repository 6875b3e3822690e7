"""What is installed: by which versions, and that a site needs no Ray."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from places import ROOT

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
