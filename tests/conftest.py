"""Shared by all tests: one thread, draws of one seed, and a federation small enough to run in a second."""

from __future__ import annotations

import logging
import os
import random
import re
import signal
import sys
import tomllib
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import weights_jitter
from data_files import fresh_cache, fresh_data  # noqa: F401 - fixtures
from hypothesis import settings
from small import SMALL, Small
from smoothness import smooth  # noqa: F401 - a fixture
from standing_clock import fake_clock  # noqa: F401 - a fixture
from texts import reddit_config, tiny_reddit  # noqa: F401 - fixtures
from waiting import patience  # noqa: F401 - a fixture
from xdist.scheduler import LoadFileScheduling

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Containers often forbid to keep what was compiled: then every process that a test starts compiles torch and Flower
# anew, which is half of all it computes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# The same examples on every machine and in every run; a busy machine is not a failure.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
# No test cuts the power, and to flush a file to the disk takes as long as to train a small model on it.
os.fsync = lambda fd: None


class DeploymentFirst(LoadFileScheduling):  # type: ignore[misc]
    """Hands out files, and of the contracts' files the cases, which share a run; federations all to the first worker.

    A federation's processes wait for heartbeats and for each other: beside what computes they lose little, but two of
    them start processes against each other, and time out. A third worker ends where nothing else is left.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        # By the id and not by a mark `xdist_group`, which pytest 9.2 hides from the scheduler.
        case = re.search(r"\[([^-\]]+)", test) if file.startswith("tests/contract/") else None
        return f"case {case[1]}" if case else file

    def _assign_work_unit(self, node: Any) -> None:
        waits = node is self.nodes[0]
        for scope in self.workqueue:
            if _is_federation(scope) == waits:
                self.workqueue.move_to_end(scope, last=False)
                break
        super()._assign_work_unit(node)

    def _reschedule(self, node: Any) -> None:
        spare = node in self.nodes[2:] and all(map(_is_federation, self.workqueue))
        if spare and not node.shutting_down:
            node.shutdown()  # when it has done what it was given
        else:
            super()._reschedule(node)


def _is_federation(scope: str) -> bool:
    return scope.startswith("tests/deployment/")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> DeploymentFirst:
    """Hand the files out by what they mostly do."""
    return DeploymentFirst(config, log)


def _files_are_named(config: pytest.Config) -> bool:
    return all(".py" in argument for argument in config.args)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run files that are named in this process: three of them import torch for longer than a file takes."""
    typed = config.invocation_params.args
    if config.option.accept:  # one process writes the golden files
        config.option.numprocesses = 0
    if _files_are_named(config) and not any(re.match("-n|--numproc", word) for word in typed):
        config.option.numprocesses = 0


JITTER = Path(__file__).parent / "helpers" / "jitter"
EXEMPT = tomllib.loads(Path(__file__).with_name("jitter.toml").read_text())["exempt"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what imitates another processor."""
    group = parser.getgroup("another processor")
    group.addoption(
        "--jitter-weights", metavar="SEED", help="multiply first weights by 1 + 1e-6 N(0, 1)"
    )
    group.addoption(
        "--write-reached", metavar="FILE", help="add the names of tests that had a model"
    )
    group.addoption("--only-reached", metavar="FILE", help="run only the tests that FILE names")
    parser.addoption(
        "--accept", action="store_true", help="write what is said now into the golden files"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Have this process and those that it starts jitter, if that is asked for."""
    seed, file = config.option.jitter_weights, config.option.write_reached
    if seed is None:
        return
    os.environ[weights_jitter.SEED] = seed
    if file:
        os.environ[weights_jitter.REACHED] = str(Path(file).absolute())
    sys.path.append(str(JITTER))
    before = os.environ.get("PYTHONPATH")
    if str(JITTER) not in (before or "").split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [before, str(JITTER)]))
    weights_jitter.install()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Leave the weights of those that are exempt as they are."""
    exempt = item.nodeid.partition("[")[0] in EXEMPT
    seed = os.environ.pop(weights_jitter.SEED, None) if exempt else None
    try:
        return (yield)
    finally:
        if seed is not None:
            os.environ[weights_jitter.SEED] = seed


def _reached(items: list[pytest.Item], file: str) -> set[pytest.Item]:
    """Return the tests that ``file`` names, and all of a file with one of them whose tests share what they made."""
    named = {*Path(file).read_text(encoding="utf-8").splitlines()}
    shared = {
        path
        for path in {name.partition("::")[0] for name in named}
        if path.startswith("tests/deployment/")
        or re.search(r"cache|scope=", Path(path).read_text(encoding="utf-8"))
    }
    return {
        item for item in items if item.nodeid in named or item.nodeid.partition("::")[0] in shared
    }


TIERS = ("long", "faults", "extended")


def _tier(item: pytest.Item) -> str | None:
    """Return the rarest of the tiers that the test is marked for: ``-m long`` runs what is ``extended`` too."""
    return next(filter(item.get_closest_marker, TIERS), None)


def _mark_sweeps(items: list[pytest.Item]) -> None:
    """Of a test that is marked ``sweep(n)`` leave the first n rows as they are, and mark the others ``extended``."""
    rows = Counter[str]()
    for item in items:
        sweep = item.get_closest_marker("sweep")
        if sweep is None or _tier(item):
            continue
        name = item.nodeid.partition("[")[0]
        rows[name] += 1
        if rows[name] > (sweep.args[0] if sweep.args else 1):
            item.add_marker("extended")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked ``extended``, ``faults`` or ``long`` unless the command line speaks of it.

    To name a file speaks of what is ``extended`` in it; the others take hours. What is marked ``gpu`` is skipped where
    there is none.
    """
    _mark_sweeps(items)
    if not torch.cuda.is_available():
        without = pytest.mark.skip(reason="torch finds no GPU here")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(without)
    unasked = [name for name in TIERS if name not in config.option.markexpr]
    if _files_are_named(config) and not config.option.markexpr:
        unasked.remove("extended")
    left_out = {item for item in items if _tier(item) in unasked}
    if config.option.only_reached:
        left_out |= {*items} - _reached(items, config.option.only_reached)
    if left_out:
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the rows that tests recorded for a table of the documents."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    for report in reports:
        for name, value in getattr(report, "user_properties", ()):
            if name == "row" and report.when == "call":
                terminalreporter.write_line(f"{value} {report.outcome}")


@pytest.fixture(autouse=True, scope="session")
def _nobodys_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What runs keep for their user is kept for this session alone."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True, scope="session")
def _interrupts_are_heard() -> None:
    """A shell makes its background jobs ignore SIGINT, and what they start inherits that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _as_alone() -> None:
    """One thread, or as many as OMP_NUM_THREADS says, and draws and a log that are the same whatever ran before."""
    logging.getLogger("flwr").setLevel(logging.INFO)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)


@pytest.fixture
def small(tmp_path: Path) -> Small:
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
