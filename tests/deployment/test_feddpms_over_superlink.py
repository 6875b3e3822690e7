"""FedDPMS over a real SuperLink whose server is killed in each of its stages: the numbers of an unbroken run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from federation import numbers, run, words_of
from frail import Frail, until
from small import Small

from server_app.record import Record

#: decoders are handed over in round 2, means are shared in round 3, and help comes in round 4
DPMS = (
    "model.name=vae model.depth=1 model.embedding=6 fedvae.preliminary_rounds=2 fedvae.epochs=1 "
    "feddpms.smallest=1 feddpms.copies=4 evaluation.on=server federation.join_deadline=600"
)
STRUCK = (1, 2, 3, 4)


@pytest.mark.extended
@pytest.mark.long
def test_killed_in_each_stage_and_resumed_it_is_an_unbroken_run(
    small: Small, tmp_path: Path
) -> None:
    """Killed once in each round up to the one in which the sites are helped; the nodes stay."""
    config = small(method="feddpms", rounds=5, set=DPMS)
    output = tmp_path / "runs"
    nodes = {f"partition-{i}": f"partition-id={i} num-partitions=3" for i in range(3)}
    with Frail(tmp_path, nodes) as federation:
        federation.start(*nodes)
        words = words_of({k: v for k, v in config.items() if k != "output-dir"})
        for struck in STRUCK:
            submitted = federation.submit_words(f"struck-{struck}", f"output-dir={output}", *words)
            begun = partial(federation.heard, "partition-0", f"ROUND {struck}]")
            until(begun, f"round {struck}", while_runs=submitted)
            federation.kill_app("superlink", "flwr-serverapp")
            until(lambda: submitted.poll() is not None, "the end of the killed run")  # noqa: B023
            assert submitted.wait() == 1
            (directory,) = output.iterdir()
            record = Record(directory)
            assert len(record.metrics()) == struck  # with the evaluation before round 1
            words = [f"resume={record.id}"]
        last = federation.submit_words("last", f"output-dir={output}", *words)
        until(lambda: last.poll() is not None, "the end of the run")
        assert last.wait() == 0, federation.log("last")
    assert numbers(record) == numbers(run(config))
