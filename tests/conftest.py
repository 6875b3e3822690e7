"""Shared by all tests: one thread, and a federation small enough to run in a second."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small import SMALL
from texts import asked, texts  # noqa: F401 - fixtures

os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files marked ``waits`` first, so that the others compute while these wait."""
    items.sort(key=lambda item: item.get_closest_marker("waits") is None)


@pytest.fixture(autouse=True, scope="session")
def _interrupts_are_heard() -> None:
    """A shell makes its background jobs ignore SIGINT, and what they start inherits that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return a maker of run configs: ``small(method="fedavg", rounds=2, set="seed...")``."""

    def make(**keys: Any) -> dict[str, Any]:
        extra = keys.pop("set", "")
        return {
            "output-dir": str(tmp_path / "runs"),
            "rounds": 2,
            **keys,
            "set": f"{SMALL} {extra}",
        }

    return make
