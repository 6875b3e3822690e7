"""A record of release 0.1.0 says what it did then, whatever the defaults are today."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.config.loading import load
from nectar.export.readme import nature_of_images
from nectar.records.past_run import PastRun

Small = Callable[..., dict[str, Any]]


def record_of_old(folder: Path, run_config: dict[str, Any], **method: Any) -> PastRun:
    """Write what 0.1.0 wrote: a run config without its defaults, and a config.yaml with all there was."""
    (folder / "provenance.json").write_text(json.dumps({"run-config": run_config}))
    tree = {"method": run_config["method"], "data": {"images": 0}, run_config["method"]: method}
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    return PastRun(folder)


@pytest.mark.parametrize("dataset", ["cifar10", "images"])
def test_images_that_began_as_real_ones_are_not_said_to_have_begun_as_noise(
    tmp_path: Path, dataset: str
) -> None:
    own = "images.classes=a,b" if dataset == "images" else ""
    given = {"method": "feddm", "dataset": dataset, "set": own, "resolved": "yes"}
    config = record_of_old(tmp_path, given, start="real", warm=False).config
    assert config.settings.model_dump()["start"] == "real"
    assert config.settings.model_dump()["warm"] is False
    assert "THEY BEGAN AS REAL IMAGES" in nature_of_images(config)


def test_real_images_of_a_folder_that_were_sent_can_still_be_reported(tmp_path: Path) -> None:
    given = {"method": "real", "dataset": "images", "set": "images.classes=a,b", "resolved": "yes"}
    config = record_of_old(tmp_path, given, ipc=10).config
    assert "THESE ARE REAL IMAGES" in nature_of_images(config)


def test_what_a_record_of_today_states_stands(tmp_path: Path) -> None:
    given = load({"dataset": "cifar10", "set": "feddm.start=noise"}).to_run_config()
    (tmp_path / "provenance.json").write_text(json.dumps({"run-config": given}))
    (tmp_path / "config.yaml").write_text(load(given).dump_yaml())
    assert PastRun(tmp_path).config == load(given)
