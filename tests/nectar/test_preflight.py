"""What cannot work is one sentence and exit code 2, before a federation is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from nectar import cli

WORDS = [
    (["model.depth=5"], "a ConvNet of depth 5 cannot be built for images of 8x8"),
    (["partition.min_size=500"], "set partition.min_size to 129 or less"),
    (["compute.device=cuda:99", "compute.client_gpus=0.1"], "this machine offers"),
    (["method=flwr.serverapp.strategy:FedAdamm"], "FedAdam"),
    (["dataset=reddit2k", "method=feddm"], "method=feddm learns from images"),
    (["dataset=reddit2k", "method=real", "data-dir=/nowhere"], "and reddit2k is text"),
    (["resume="], "resume= names no record"),
]


@pytest.mark.parametrize("command", ["run", "simulate"])
@pytest.mark.parametrize(("words", "said"), WORDS)
def test_refused_in_a_sentence_and_nothing_is_left(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: str, words: list[str], said: str
) -> None:
    output = tmp_path / "runs"
    assert cli.main([command, f"output-dir={output}", *words]) == 2
    error = capfd.readouterr().err
    assert error.startswith("nectar: ")
    assert said in error
    assert "Traceback" not in error
    assert not output.exists()


def test_a_log_that_is_no_terminal_has_no_colours(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["method=real", "image_training.epochs=0", "rounds=1", f"output-dir={tmp_path}"]
    assert cli.main(["run", *words]) == 0
    said = capfd.readouterr()
    assert "\x1b[" not in said.err + said.out
