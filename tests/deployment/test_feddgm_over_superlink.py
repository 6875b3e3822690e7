"""FedDGM over a real SuperLink: sites of two depths, several global models, a server that is killed and resumed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from federation import numbers, run, words_of
from frail import Frail, until
from small import Small

from server_app.record import Record

#: a surrogate of another depth at one site, two global models, latents that the next round goes on from
DGM = (
    "model.depth=2 feddgm.depths=partition-1:1 feddgm.global_models=convnet,mlp feddgm.warm=on feddgm.epochs=2 "
    "feddgm.ipc=2 feddgm.iterations=3 feddgm.inner_epochs=3 feddgm.global_epochs=5 feddgm.surrogate_epochs=5 "
    "evaluation.on=server federation.join_deadline=600"
)


@pytest.mark.extended
@pytest.mark.long
def test_killed_in_round_2_and_resumed_it_is_the_unbroken_run_of_this_process(
    small: Small, tmp_path: Path
) -> None:
    config = small(method="feddgm", rounds=3, set=DGM)
    output = tmp_path / "runs"
    nodes = {f"partition-{i}": f"partition-id={i} num-partitions=3" for i in range(3)}
    with Frail(tmp_path, nodes) as federation:
        federation.start(*nodes)
        words = words_of({k: v for k, v in config.items() if k != "output-dir"})
        struck = federation.submit_words("struck", f"output-dir={output}", *words)
        begun = partial(federation.heard, "partition-0", "ROUND 2]")
        until(begun, "round 2", while_runs=struck)
        federation.kill_app("superlink", "flwr-serverapp")
        until(lambda: struck.poll() is not None, "the end of the killed run")
        assert struck.wait() == 1
        (directory,) = output.iterdir()
        record = Record(directory)
        assert len(record.metrics()) == 2  # with the evaluation before round 1
        last = federation.submit_words("last", f"output-dir={output}", f"resume={record.id}")
        until(lambda: last.poll() is not None, "the end of the run")
        assert last.wait() == 0, federation.log("last")
    assert numbers(record) == numbers(run(config))
