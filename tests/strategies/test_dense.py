"""DENSE: when it distils and what into, FedAvg where it does not, and what it refuses."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from documents import written
from federation import losses, numbers, resumed, run, same, same_end
from small import Small
from torch import Tensor, nn

import strategies.dense
from common.config.loading import load
from common.division import Division
from common.errors import FederationError
from common.sites import Site
from common.wire.weights import Weights
from nectar.cli import main as nectar
from nectar.records.record import RunRecord
from server_app.app import make_strategy
from strategies.exchange.replies import Upload
from synth.ensemble_distillation import Plan

#: two iterations of two steps, on 8 images each
TINY = (
    "dense.server_iterations=2 dense.generator_steps=2 dense.generator_batch=8 dense.student_batch=8 dense.width=4 "
    "dense.noise=4 dense.padding=1"
)
#: its devices as FedAvg's are by default
AS_FEDAVG = "dense.momentum=0.0"


# ---- what equals FedAvg -----------------------------------------------------------------------------------


def test_without_an_iteration_a_student_from_the_current_weights_stays_there(small: Small) -> None:
    settings = f"{TINY} dense.server_iterations=0 dense.student_start=current"
    curve = losses(run(small(method="dense", rounds=2, set=settings)))
    assert curve[2] == curve[1] != curve[0]


# ---- when it distils --------------------------------------------------------------------------------------


def test_by_default_the_last_round_alone_distils(small: Small) -> None:
    record = run(small(method="dense", rounds=3, set=f"{TINY} {AS_FEDAVG}"))
    plain = losses(run(small(method="fedavg", rounds=3)))
    assert losses(record)[:3] == plain[:3]
    assert losses(record)[3] != plain[3]
    told = [sorted(line.get("notes", {})) for line in record.metrics()]
    assert told == [[], [], [], ["generator-loss", "student-loss"]]


def test_every_round_may_distil(small: Small) -> None:
    settings = f"{TINY} {AS_FEDAVG} dense.distil=every"
    record = run(small(method="dense", rounds=2, set=settings))
    assert losses(record)[1] != losses(run(small(method="fedavg", rounds=1)))[1]
    assert ["notes" in line for line in record.metrics()] == [False, True, True]


# ---- what into, and of what -------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "value"), [("average", 2.0), ("current", 0.0)])
def test_what_is_distilled(
    small: Small, monkeypatch: pytest.MonkeyPatch, start: str, value: float
) -> None:
    """Models of all 1s and all 3s, from weights of all 0s: the ensemble is of these two.

    0 and 1, the ends of an image's values, are (0 - mean) / std and (1 - mean) / std to a model.
    """
    seen: dict[str, Any] = {}

    class Noted:
        def __init__(self, student: Any, ensemble: Any, *args: Any, **kwargs: Any) -> None:
            _, _, normalised, _ = args
            seen["ends"] = normalised(torch.tensor([0.0, 1.0]).view(2, 1, 1, 1)).flatten()
            seen["student"] = {k: v.clone() for k, v in student.state_dict().items()}
            seen["ensemble"] = [float(m.head.bias.mean()) for m in ensemble._models]

    monkeypatch.setattr(strategies.dense, "Distillation", Noted)
    text = f"{TINY} dense.distil=every dense.server_iterations=0 dense.student_start={start}"
    made = Division(load(small(method="dense", set=text))).run

    def all_of(number: float) -> Weights:
        state = made.build_model().state_dict()
        return Weights({name: torch.full_like(t, number) for name, t in state.items()})

    uploads = (Upload(Site(n, 1, 5), all_of(v), 5, {}) for n, v in (("a", 1.0), ("b", 3.0)))
    new = make_strategy(made).update(1, all_of(0.0), uploads)
    (mean,), (std,) = made.info.mean, made.info.std
    torch.testing.assert_close(seen["ends"], torch.tensor([-mean / std, (1 - mean) / std]))
    assert seen["ensemble"] == [1.0, 3.0]
    assert same(seen["student"], all_of(value).tensors)
    assert same(new.tensors, all_of(value).tensors)


def test_every_setting_of_the_plan_is_one_of_the_method(small: Small) -> None:
    """Each has another value than by default, and arrives."""
    given = {
        "steps": ("generator_steps", 3),
        "lr": ("generator_lr", 0.5),
        "batch": ("generator_batch", 5),
        "matching": ("matching", 0.25),
        "statistics": ("statistics", 0.75),
        "adversarial": ("adversarial", 2.5),
        "padding": ("padding", 2),
        "flip": ("flip", False),
        "student_batch": ("student_batch", 6),
        "student_lr": ("student_lr", 0.125),
        "momentum": ("student_momentum", 0.375),
        "temperature": ("temperature", 7.0),
    }
    text = " ".join(f"dense.{name}={str(value).lower()}" for name, value in given.values())
    settings = load(small(method="dense", set=text)).settings
    plan = strategies.dense._plan(settings)  # type: ignore[arg-type]
    assert dataclasses.asdict(plan) == {field: value for field, (_, value) in given.items()}
    defaults = strategies.dense._plan(type(settings)())  # type: ignore[arg-type]
    assert defaults == Plan()


# ---- what there is to see -----------------------------------------------------------------------------------


def test_the_newest_images_of_each_class_are_shown(small: Small) -> None:
    """Twelve of class 3 and one of class 5, each of one grey of its own: the last ten of 3 remain, and that of 5."""
    made = Division(load(small(method="dense", set=TINY))).run
    strategy, (mean,), (std,) = make_strategy(made), made.info.mean, made.info.std
    labels = torch.tensor([3] * 6 + [5] + [3] * 6)
    greys = torch.arange(13, dtype=torch.uint8)
    pool = greys.view(13, 1, 1, 1).expand(13, 1, 8, 8)
    done = SimpleNamespace(pool=[pool[:6], pool[6:]], labels=[labels[:6], labels[6:]])
    shown = strategy._newest(done)  # type: ignore[attr-defined]
    assert shown.labels.tolist() == [3] * 6 + [5] + [3] * 4
    greys_shown = (shown.images * std + mean) * 255
    expected = torch.tensor([12.0, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2])
    torch.testing.assert_close(greys_shown.mean((1, 2, 3)), expected)


@pytest.mark.extended
def test_a_round_that_distils_leaves_its_images_in_the_record_and_the_report(small: Small) -> None:
    record = run(small(method="dense", rounds=2, set=TINY))
    server_round, sets = RunRecord.open(record.directory).synthetic()
    assert server_round == 2
    assert list(sets) == ["all sites"]
    assert not (record.directory / "samples" / "round-001").exists()
    assert (record.directory / "samples" / "round-002" / "all sites.png").is_file()
    document = written(record)
    assert "What the server made in round 2" in document.text
    assert "the nearest one among all sites' own real images" in document.text
    found = sets["all sites"]
    for c in torch.unique(found.labels).tolist():
        alts = [i["alt"] for i in document.all("img") if f"class {c}:" in i["alt"]]
        n = int((found.labels == c).sum())
        assert alts == [
            f"all sites, class {c}: {n} image{'s' if n > 1 else ''} made",
            f"all sites, class {c}: the nearest real image of each",
        ]


@pytest.mark.extended
def test_its_images_are_exported_as_the_servers(
    small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = run(small(method="dense", rounds=1, set=TINY))
    assert nectar(["export", str(record.directory), "--output", str(tmp_path / "out")]) == 0
    count = len(RunRecord.open(record.directory).synthetic()[1]["all sites"].labels)
    assert f"{count} images that the server made: " in capsys.readouterr().out
    message = (tmp_path / "out" / "README.md").read_text()
    assert "## What the server made" in message
    assert f"`synthetic/` holds {count} images of round 1. What sites sent (weights)" in message
    assert len(list((tmp_path / "out" / "synthetic" / "images").glob("*/all sites-*.png"))) == count


# ---- what a run keeps, and what is refused ----------------------------------------------------------------


class Dropping(nn.Module):
    """A network of its user's own, which draws in training."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        sizes = math.prod(shape), classes
        self.layers = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(*sizes))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


@pytest.mark.extended
def test_students_that_draw_draw_on_where_a_continued_run_stood(small: Small) -> None:
    """The plain run is in test_resume.py."""
    settings = f"{TINY} dense.distil=every model.name={__name__}:Dropping"
    whole = run(small(method="dense", rounds=3, set=settings))
    continued = resumed(run(small(method="dense", rounds=1, set=settings)), 3)
    assert numbers(continued) == numbers(whole)
    assert same_end(continued, whole)


@pytest.mark.parametrize("whose", ["generator", "student"])
def test_a_distillation_that_diverges_ends_the_run_by_a_sentence(small: Small, whose: str) -> None:
    config = small(method="dense", rounds=1, set=f"{TINY} dense.{whose}_lr=1e30")
    with pytest.raises(FederationError, match=r"round 1 is not kept: the .* \(dense\.generator_lr"):
        run(config)
