"""What the federations' tests share: one federation that nobody kills, and stories of faults that mostly wait."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext

import pytest
from deployment import Secured
from fault_federation import nobody_waits_on
from fault_steps import Row, run_fault

SITES = {f"partition-{i}": f"partition-id={i} num-partitions=3" for i in range(3)}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A SuperLink with TLS and three sites with keys, for all of a file that neither kills nor revokes one of them.

    Not for the session: looking for work costs its processes half of a core.
    """
    with Secured(tmp_path_factory.mktemp("lab"), SITES) as federation:
        yield federation


@pytest.fixture(scope="session")
def rows(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, str], Future[Row]]]:
    """The stories of the rows that were asked for, three at a time: they mostly wait for Flower's heartbeats."""
    asked = dict.fromkeys(
        (item.callspec.params["fault"], item.callspec.params["step"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path.name == "test_fault_phases.py"
    )
    directory = tmp_path_factory.mktemp("phases")
    with ThreadPoolExecutor(3) as pool, nobody_waits_on() if asked else nullcontext():
        yield {
            (fault, step): pool.submit(run_fault, directory / f"{fault[:4]}-{step}", fault, step)
            for fault, step in asked
        }
