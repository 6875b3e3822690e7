"""Fedssyn over a real SuperLink: the numbers of this process, also where a site is killed as its generator trains."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from federation import MissingGrid, numbers, run, words_of
from frail import Frail, until
from small import Small

from server_app.checkpoint import Checkpoint
from server_app.record import Record

pytestmark = [pytest.mark.extended, pytest.mark.long]

#: SCAFFOLD around some hundred images a site; a generator takes long enough to be met at its work
SETTINGS = (
    "fedssyn.inner=scaffold fedssyn.width=8 fedssyn.multipliers=1,2 fedssyn.blocks=1 fedssyn.attention=1 "
    "fedssyn.batch=16 fedssyn.epochs=40 fedssyn.diffusion_steps=50 fedssyn.sampling_steps=5 "
    "fedssyn.sampler=second-order evaluation.on=server federation.join_deadline=600 "
    "federation.min_replies=3"
)
NODES = {f"partition-{i}": f"partition-id={i} num-partitions=3" for i in range(3)}


def _learned(record: Record) -> list[Any]:
    return [(line["test"], line["floats_up"]) for line in record.metrics()]


@pytest.mark.parametrize("killed", [False, True])
def test_the_numbers_are_those_of_this_process(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """Site 1 is killed once in round 1 and asked again in round 2; or nobody is."""
    config = small(method="fedssyn", rounds=4, set=SETTINGS)
    output, shelf = tmp_path / "there", tmp_path / "state" / "nectar-made"
    words = words_of({k: v for k, v in config.items() if k != "output-dir"})
    with Frail(tmp_path, NODES) as federation:
        federation.start(*NODES)
        submitted = federation.submit_words("run", f"output-dir={output}", *words)
        if killed:
            begun = partial(federation.heard, "partition-1", "ROUND 1]")
            until(begun, "round 1", while_runs=submitted)
            until(lambda: any(shelf.glob("*.lock")), "the training", while_runs=submitted)
            federation.kill_app("partition-1", "flwr-clientapp")
        until(lambda: submitted.poll() is not None, "the end of the run")
        assert submitted.wait() == 0, federation.log("run")
    (directory,) = output.iterdir()
    there = Record(directory)
    away = {("partition-1", 1)} if killed else set()
    here = run(config, MissingGrid, absent=away, lost=set())
    assert [list(line["rejected"]) for line in there.metrics()][1] == (
        ["partition-1"] if killed else []
    )
    if not killed:
        assert numbers(there) == numbers(here)
    assert _learned(there) == _learned(here)
    one, other = (Checkpoint.load(r.last).strategy["pool"]["images"][""] for r in (there, here))
    assert one.equal(other)
