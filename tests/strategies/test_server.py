"""`server`: a model of the server's own labelled images alone, which no site has any part in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nectar
from common.division import Division
from nectar import cli
from nectar.recorded_run import RecordedRun

QUICK: dict[str, Any] = {"model.width": 4, "image_training.epochs": 2, "federation.sites": 3}


def ran(output: Path, **more: Any) -> RecordedRun:
    return nectar.run("server", rounds=2, output_dir=output, progress=False, **QUICK | more)


def figures(run: RecordedRun) -> list[Any]:
    return [line["test"] for line in run.rounds]


def test_it_learns_from_the_validation_images_and_from_nothing_else(tmp_path: Path) -> None:
    """Every image of a site is painted black: the same figures. One of the server's is: others."""
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 3
    images = rng.integers(0, 255, (120, 8, 8, 1), dtype=np.uint8)

    def saved(name: str) -> dict[str, str]:
        path = tmp_path / f"{name}.npz"
        np.savez(path, train_images=images, train_labels=labels,
                 test_images=images[:30], test_labels=labels[:30])  # fmt: skip
        return {"data.file": str(path)}

    test = images[:30].copy()
    plain = ran(tmp_path / "runs", **saved("plain"))
    held = Division(plain.config).validation
    assert len(held) == 12
    others = np.setdiff1d(np.arange(120), held)

    def painted(name: str, black: Any) -> dict[str, str]:
        path, copy = tmp_path / f"{name}.npz", images.copy()
        copy[black] = 0
        np.savez(path, train_images=copy, train_labels=labels,
                 test_images=test, test_labels=labels[:30])  # fmt: skip
        return {"data.file": str(path)}

    assert figures(ran(tmp_path / "runs", **painted("sites", others))) == figures(plain)
    assert figures(ran(tmp_path / "runs", **painted("server", held[:1]))) != figures(plain)


def test_who_the_sites_are_changes_nothing_and_nothing_is_sent(tmp_path: Path) -> None:
    one = ran(tmp_path)
    other = ran(tmp_path, **{"federation.sites": 7, "partition.kind": "iid"})
    assert figures(one) == figures(other)
    assert [line["bytes"] for line in one.rounds] == [{"down": {}, "up": {}}] * 3


@pytest.mark.extended
def test_its_images_judge_nothing_and_are_counted(tmp_path: Path) -> None:
    run = ran(tmp_path)
    assert [line["validation"] for line in run.rounds] == [None] * 3
    assert run.rounds[-1]["notes"]["trained_on"] == 144
    assert not (run.directory / "checkpoint" / "best.safetensors").exists()
    assert "asked no site" in run.report().read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("server data.validation=0", "data.validation=0 of 1437 is no image: set data.validation above 0"),
        ("server data.validation_at=sites", "data.validation_at=sites leaves it none"),
        ("fedssyn fedssyn.inner=server", "inner=server learns from no site's images"),
    ],
)  # fmt: skip
def test_without_labelled_images_it_is_refused_in_a_sentence_before_a_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    assert cli.main(["run", *words.split(), f"output-dir={tmp_path}"]) != 0
    assert said in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.glob("*server*"))


def test_a_search_does_not_judge_it_by_what_it_learned_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["server", f"output-dir={tmp_path}", "--tune", "server.image_training.lr=0.1,0.2"]
    assert cli.main(["compare", *words]) != 0
    assert "from which method=server learns" in " ".join(capsys.readouterr().err.split())
