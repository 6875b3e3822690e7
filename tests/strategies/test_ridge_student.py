"""A network that the server trains on its own examples, taught by the solution of the sites' sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nectar
from common.config.loading import load
from common.division import Division
from common.samples.inputs import Samples, samples
from common.specs.ridge import joint_spec
from nectar.export.bundle import export
from nectar.export.model import ExportedModel
from nectar.recorded_run import RecordedRun
from strategies import taught

QUICK: dict[str, Any] = {
    "ridge.width": 65,
    "ridge.student": "mlp",
    "model.width": 20,
    "federation.sites": 3,
    "image_training.steps": 60,
    "image_training.batch": 64,
    "image_training.lr": 0.1,
    "image_training.ball": 0,
}


def ran(output: Path, **more: Any) -> RecordedRun:
    return nectar.run("ridge", output_dir=output, progress=False, **(QUICK | more))


def learned(run: RecordedRun) -> Tensor:
    return torch.cat([t.flatten() for t in dict(run.checkpoint().model("")).values()])


class Pixels(nn.Module):
    """Scores that are the inputs themselves."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


def made(tmp_path: Path, words: str = "") -> Any:
    text = "ridge.student=mlp " + words
    return Division(
        load({"method": "ridge", "dataset": "digits", "output-dir": str(tmp_path), "set": text})
    ).run


def test_a_views_target_is_half_its_label_and_half_what_the_teacher_says_of_that_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taught, "VIEWS", 3)
    monkeypatch.setattr(taught, "_AT_ONCE", 4)
    x = torch.randn(4, 1, 1, 10, generator=torch.Generator().manual_seed(0))
    own = Samples.of(x, torch.tensor([3, 1, 4, 1]))
    run = made(tmp_path)
    monkeypatch.setattr(torch, "rand", lambda n, **_: torch.full((n,), 0.25))
    monkeypatch.setattr(torch, "randperm", lambda n, **_: torch.arange(n).flip(0))
    views = taught._views(run, 1, Pixels(), own)
    assert len(views) == 12
    hard = F.one_hot(own.labels, 10).float()
    for batch in (0, 2):  # the examples as they are
        at = slice(4 * batch, 4 * batch + 4)
        torch.testing.assert_close(views.raw[at], x)
        told = (10 * x.flatten(1)).softmax(1)
        torch.testing.assert_close(views.labels[at], (hard + told) / 2)
    mixed, labels = 0.25 * x + 0.75 * x.flip(0), 0.25 * hard + 0.75 * hard.flip(0)
    torch.testing.assert_close(views.raw[4:8], mixed)
    torch.testing.assert_close(views.labels[4:8], (labels + (10 * mixed.flatten(1)).softmax(1)) / 2)


def test_views_of_large_pictures_stay_within_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Samples.of(torch.randn(5, 1, 1, 10), torch.arange(5))
    monkeypatch.setattr(taught, "MOST_BYTES", 5 * 40 * 7)
    assert len(taught._views(made(tmp_path), 1, Pixels(), own)) == 35
    monkeypatch.setattr(taught, "MOST_BYTES", 1)
    assert len(taught._views(made(tmp_path), 1, Pixels(), own)) == 5


@pytest.mark.extended
def test_a_teacher_adds_to_what_the_server_learns_from_its_own_examples(tmp_path: Path) -> None:
    steps = {"image_training.steps": 600, "ridge.width": 257}
    with_teacher = ran(tmp_path, **steps)
    monkey = pytest.MonkeyPatch()
    monkey.setattr(taught, "LABELS", 1.0)  # the same training without a teacher
    alone = ran(tmp_path / "alone", **steps)
    monkey.undo()
    accuracies = [run.rounds[-1]["test"]["accuracy"] for run in (with_teacher, alone)]
    assert accuracies[0] > accuracies[1] + 0.01
    assert with_teacher.rounds[-1]["notes"]["trained_on"] == 144


@pytest.mark.extended
def test_the_same_command_gives_the_same_network_which_is_the_runs_model(tmp_path: Path) -> None:
    runs = [ran(tmp_path / name) for name in ("one", "other")]
    assert torch.equal(*map(learned, runs))
    assert set(dict(runs[0].checkpoint().model(""))) == {
        f"{layer}.{kind}" for layer in ("features.1", "head") for kind in ("weight", "bias")
    }
    export(runs[0], tmp_path / "model")
    images = torch.rand(5, 1, 8, 8)
    read = ExportedModel.open(tmp_path / "model").network
    torch.testing.assert_close(read(images), runs[0].model(images))


# ---- a second round ----------------------------------------------------------------------------------

REFIT: dict[str, Any] = QUICK | {
    "rounds": 2,
    "ridge.refit": True,
    "ridge.student": "convnet",
    "model.depth": 1,
    "model.width": 4,
    "image_training.steps": 20,
}
FINE = {"ridge.form": "integers", "ridge.levels": 2048, "ridge.lam": "3"}


@pytest.mark.extended
def test_the_first_rounds_model_is_the_solution_alone(tmp_path: Path) -> None:
    run = nectar.run("ridge", output_dir=tmp_path, progress=False, **(REFIT | FINE))
    plain = {key: REFIT[key] for key in ("ridge.width", "federation.sites")} | FINE
    alone = nectar.run("ridge", output_dir=tmp_path / "alone", progress=False, **plain)
    assert run.rounds[1]["test"]["accuracy"] == alone.rounds[-1]["test"]["accuracy"]


@pytest.mark.extended
@pytest.mark.parametrize("rounds", [1, 2])
def test_the_model_is_the_solution_of_axes_and_embedding(tmp_path: Path, rounds: int) -> None:
    more = FINE | {"rounds": rounds}
    run = nectar.run("ridge", output_dir=tmp_path, progress=False, **(REFIT | more))
    division = Division(run.config)
    model = run.model.eval().double()
    where = np.sort(np.concatenate(list(division.partition(3))))
    every = samples(division.dataset.train, division.run.info, where)
    with torch.no_grad():
        x = every.inputs(slice(None))
        z = model.fixed.embed(x.double())
        e = (model.network.float().embed(x).double() - model.mean) / model.deviation
    rows = torch.cat([z, e, torch.ones(len(z), 1)], 1)
    y = F.one_hot(every.labels, 10).double()
    solution = torch.linalg.solve(rows.mT @ rows + 3 * torch.eye(rows.shape[1]), rows.mT @ y)
    expected = solution.mT
    found = torch.cat([model.head.weight, model.head.bias[:, None]], 1)
    found = found * run.rounds[-1]["notes"]["error"]
    assert (found - expected).norm() < 1e-3 * expected.norm()  # rows are rounded


@pytest.mark.extended
def test_in_one_round_the_network_learns_from_the_servers_own_examples(tmp_path: Path) -> None:
    """However the sites' are divided, the network is the same; and so, of exact sums, is the solution."""
    one, other = (
        nectar.run("ridge", output_dir=tmp_path / str(n), progress=False, **(REFIT | FINE | more))
        for n, more in enumerate(
            {"rounds": 1, "federation.sites": sites, "partition.alpha": alpha}
            for sites, alpha in ((3, 0.5), (2, 9.0))
        )
    )
    assert one.rounds[-1]["notes"]["trained_on"] == 144
    found, same = (dict(run.checkpoint().model("")) for run in (one, other))
    assert found.keys() >= {*joint_spec(Division(one.config).run).names}
    for name, values in found.items():
        assert torch.equal(values, same[name]), name


@pytest.mark.extended
def test_alone_the_server_has_its_own_network_and_its_own_solution(tmp_path: Path) -> None:
    """The network is that of the one round; the head is the solution of the server's examples."""
    more = FINE | {"rounds": 1}
    asked, alone = (
        nectar.run("ridge", output_dir=tmp_path / word, progress=False, **(REFIT | more | own))
        for word, own in {"asked": {}, "alone": {"ridge.alone": True}}.items()
    )
    assert not sum(alone.rounds[-1]["bytes"]["up"].values())
    assert not sum(alone.rounds[-1]["bytes"]["down"].values())
    found, same = (dict(run.checkpoint().model("")) for run in (alone, asked))
    for name in joint_spec(Division(alone.config).run).names:
        assert torch.equal(found[name], same[name])
    assert not torch.equal(found["head.weight"], same["head.weight"])


@pytest.mark.extended
def test_what_goes_down_is_the_network_and_the_scale_of_its_embedding(tmp_path: Path) -> None:
    run = nectar.run("ridge", output_dir=tmp_path, progress=False, **REFIT)
    named = joint_spec(Division(run.config).run).names
    assert {name.split(".")[0] for name in named} == {"network", "mean", "deviation"}
    numbers = sum(run.checkpoint().model("")[name].numel() for name in named)
    first, second = (line["bytes"]["down"]["partition-0"] for line in run.rounds[1:])
    assert first < second < 4 * numbers + 2_000


@pytest.mark.extended
def test_each_of_two_noisy_rounds_is_charged(tmp_path: Path) -> None:
    noise = {"privacy.noise_multiplier": 2.0, "privacy.counts": "public"}
    one = ran(tmp_path / "one", **noise)
    two = nectar.run("ridge", output_dir=tmp_path / "two", progress=False, **(REFIT | noise))
    spent = [
        max(site["epsilon"] for site in run.rounds[-1]["notes"]["spent"].values())
        for run in (one, two)
    ]
    assert spent[1] > 1.3 * spent[0]
