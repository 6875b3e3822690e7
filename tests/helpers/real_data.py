"""Where the published data sets lie; a test that lacks one is skipped, and fails in CI."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from common.data.published.sources import SOURCES


def data_directory(name: str) -> Path:
    directory = Path(os.environ.get("NECTAR_DATA", "/nowhere"))
    if name in SOURCES:
        missing = [file.path for file in SOURCES[name].missing(directory)]
    else:
        missing = [] if (directory / name / "train").is_dir() else [f"{name}/train"]
    if missing:
        reason = f"NECTAR_DATA has no {missing[0]}"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return directory
