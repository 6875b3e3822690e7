"""Methods whose server makes data of what sites send, over a real SuperLink: the numbers of this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from federation import numbers, run, words_of
from frail import Frail, until
from small import Small

from server_app.record import Record

ALL = "evaluation.on=server federation.join_deadline=600"
METHODS = {
    "fedgen": f"fedgen.epochs=2 fedgen.generator_steps=5 {ALL}",
    "dense": (
        "dense.epochs=2 dense.distil=every dense.server_iterations=2 dense.generator_steps=2 "
        f"dense.generator_batch=8 {ALL}"
    ),
    "feddm": f"feddm.global_models=mlp,convnet feddm.global_epochs=3 {ALL}",
}


@pytest.mark.extended
@pytest.mark.long
def test_each_gives_the_numbers_of_this_process(small: Small, tmp_path: Path) -> None:
    output = tmp_path / "runs"
    nodes = {f"partition-{i}": f"partition-id={i} num-partitions=3" for i in range(3)}
    with Frail(tmp_path, nodes) as federation:
        federation.start(*nodes)
        for method, words in METHODS.items():
            config = small(method=method, rounds=2, set=words)
            given = words_of({k: v for k, v in config.items() if k != "output-dir"})
            done = federation.submit_words(method, f"output-dir={output / method}", *given)
            until(lambda at=done: at.poll() is not None, f"the end of {method}")
            assert done.wait() == 0, federation.log(method)
            (directory,) = (output / method).iterdir()
            assert numbers(Record(directory)) == numbers(run(config)), method
