"""Every cell of a paper's table has the settings that the paper states: one entry of a YAML file here each.

An entry is of the ``cells`` that its patterns match, but those of ``not``; at the paper's size, or with ``small: yes``
of the small variant, or of both; under the cell's own method, or under each of ``methods``. Of what is expected a key
is a setting (``own.`` stands for the method's section, ``strategy.`` for an attribute of what the server makes), or
``parameters`` of the model, ``decoder`` of FedDPMS', or ``built``. A value ``{alpha: 0.5}`` is the number behind that
word in the cell's name, else 0.5; ``none`` is a setting that the method has not. ``alike`` are equal under all methods.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from common.config import privacy_plan
from common.config.loading import load
from common.config.resolved import Config
from common.config.tables import experiments
from common.division import Division
from common.methods import METHODS, path_of
from common.specs.feddpms import start_decoder
from server_app.app import make_strategy

HERE = Path(__file__).parent
#: CI's second tier has the small variants too, and what is built
ENTRIES = [
    pytest.param(
        entry,
        id=f"{path.stem} {number} {entry['cells']}",
        marks=[pytest.mark.extended] * bool("small" in entry or "built" in entry["expect"]),
    )
    for path in sorted(HERE.glob("*.yaml"))
    for number, entry in enumerate(yaml.safe_load(path.read_text(encoding="utf-8")))
]
ENDS: dict[Any, tuple[str, ...]] = {False: ("",), True: ("-small",), "both": ("", "-small")}


def cells_of(entry: dict[str, Any]) -> Iterator[str]:
    """Yield the names of an entry's cells."""
    for cell, small in experiments().items():
        wanted = any(fnmatch(cell, each) for each in entry["cells"].split())
        if wanted and not any(fnmatch(cell, each) for each in entry.get("not", "").split()):
            yield from (
                f"{cell}{end}" for end in ENDS[entry.get("small", False)] if small or not end
            )


def swept(cell: str, word: str, otherwise: float) -> float:
    """Return the number that a cell's name gives after a word, as in ``feddm-cifar10-alpha0.1``."""
    parts = [part.removeprefix(word) for part in cell.split("-") if part.startswith(word)]
    return float(parts[0]) if parts else otherwise


def parameters(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def found(config: Config, key: str) -> Any:
    """Return what a configuration has of an entry's key."""
    section, _, name = key.rpartition(".")
    if key == "parameters":
        return parameters(Division(config).run.build_model())
    if key == "decoder":
        return parameters(start_decoder(Division(config).run))
    if key == "built":
        return path_of(type(make_strategy(Division(config).run))) == METHODS[config.method].strategy
    if section == "strategy":
        return getattr(make_strategy(Division(config).run), name)
    if section == "own":
        return config.settings.model_dump().get(name, "none")
    if section and section not in config.sections():
        return getattr(config.of(section).settings, name)
    return getattr(config.sections()[section] if section else config, name)


@pytest.mark.sweep
@pytest.mark.parametrize("entry", ENTRIES)
def test_the_papers_settings(entry: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy_plan, "noise_for", lambda *_: 1.0)  # of an epsilon that is stated
    cells = list(cells_of(entry))
    assert cells
    for cell in cells:
        others = [{"method": method} for method in entry.get("methods", ())]
        configs = [load({"experiment": cell, **other}) for other in others or [{}]]
        for key, value in entry["expect"].items():
            value = swept(cell, *next(iter(value.items()))) if isinstance(value, dict) else value
            for config in configs:
                assert found(config, key) == value, (cell, config.method, key)
        for key in entry.get("alike", ()):
            assert len({config.settings.model_dump()[key] for config in configs}) == 1, (cell, key)
