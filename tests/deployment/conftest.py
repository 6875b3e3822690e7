"""What the federations' tests share: a story that mostly waits, told beside others."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext

import pytest
from frail import nobody_waits_on
from phases import Row, story


@pytest.fixture(scope="session")
def rows(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, str], Future[Row]]]:
    """The stories of the rows that were asked for, three at a time: they mostly wait for Flower's heartbeats.

    Whoever has as long to wait asks for them first, so that they are told meanwhile.
    """
    asked = dict.fromkeys(
        (item.callspec.params["fault"], item.callspec.params["step"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path.name == "test_fault_phases.py"
    )
    directory = tmp_path_factory.mktemp("phases")
    with ThreadPoolExecutor(3) as pool, nobody_waits_on() if asked else nullcontext():
        yield {
            (fault, step): pool.submit(story, directory / f"{fault[:4]}-{step}", fault, step)
            for fault, step in asked
        }
