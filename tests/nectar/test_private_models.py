"""A model with which a private step cannot be taken is refused before a run is begun, by the name of the layer."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from nectar import cli

MODULE = """
import torch
from torch import nn

class Rows(nn.Module):
    def __init__(self, kind, classes, width=8):
        super().__init__()
        self.rows = kind(8, width, batch_first=True)
        self.head = nn.Linear(width, classes)
    def forward(self, x):
        return self.head(self.rows(x.squeeze(1))[0][:, -1])

def gru(shape, classes):
    return Rows(nn.GRU, classes)

def lstm(shape, classes):
    return Rows(nn.LSTM, classes)

def rnn(shape, classes):
    return Rows(nn.RNN, classes)

def norm(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes))

def deep(shape, classes):
    inner = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    return nn.Sequential(inner, nn.Flatten(), nn.Linear(144, classes))

class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))
    def forward(self, x):
        self.seen += x.mean(0)
        return x - self.seen

def counting(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), Counting(), nn.Linear(8, classes))

class Asking(nn.Module):
    def forward(self, x):
        return -x if x.mean().item() < 0 else x

def asking(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), Asking(), nn.Linear(8, classes))

class Standard(nn.Module):
    def forward(self, x):
        return (x - x.mean(0)) / x.std(0)

def standard(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), Standard(), nn.Linear(8, classes))

class Picks(nn.Module):
    def forward(self, x):
        return x[:, torch.randperm(8)]

def picks(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), Picks(), nn.Linear(8, classes))

def plain(shape, classes):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Flatten(), nn.Dropout(0.2),
        nn.Linear(144, classes),
    )
"""

PRIVATE = ["privacy.noise_multiplier=1", "privacy.counts=public"]

REFUSED = {
    "gru": "layer rows (GRU)",
    "rnn": "layer rows (RNN)",
    "norm": "layer 2 (BatchNorm1d)",
    "deep": "layer 0.1 (BatchNorm2d)",
    "counting": "layer 2 (Counting)",
    "asking": "layer 2 (Asking)",
    "picks": "layer 2 (Picks)",
    "standard": "not finite",
}


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_users_private_models.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "a_users_private_models", raising=False)


def words(method: str, model: str, runs: Path, *more: str) -> list[str]:
    own = f"model.name=a_users_private_models:{model}"
    sites = ["federation.sites=3", "rounds=1", f"output-dir={runs}"]
    return [method, *sites, *([own] if model else []), *more]


@pytest.mark.parametrize("model", REFUSED)
def test_the_layer_is_named_and_nothing_is_begun(
    model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    assert cli.main(["run", *words("fedavg", model, runs, *PRIVATE)]) == 2
    message = capfd.readouterr().err.strip().splitlines()
    assert len(message) == 1
    assert REFUSED[model] in message[0]
    assert "use " in message[0]
    assert "set privacy.noise_multiplier=0" in message[0]
    assert not runs.exists()


@pytest.mark.parametrize(
    ("command", "method"),
    [
        ("simulate", "fedavg"),
        ("compare", "fedavg"),
        ("run", "scaffold"),
        ("run", "local"),
        ("run", "moon"),
    ],
)
def test_so_it_is_under_any_command_and_method(
    command: str, method: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    assert cli.main([command, *words(method, "norm", runs, *PRIVATE)]) == 2
    assert REFUSED["norm"] in capfd.readouterr().err
    assert not list(runs.glob("*/provenance.json"))


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_batch_norm_of_a_network_of_nectars_is_refused_too(
    method: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    assert cli.main(["run", *words(method, "", runs, *PRIVATE, "model.norm=batch")]) == 2
    message = capfd.readouterr().err
    assert "BatchNorm" in message
    assert "model.norm=group" in message
    assert not runs.exists()


@pytest.mark.parametrize("model", ["norm", "standard"])
def test_so_it_is_where_images_are_matched(
    model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs, matched = tmp_path / "runs", ["feddm.mechanism=feature", "feddm.start=noise"]
    assert cli.main(["run", *words("feddm", model, runs, *PRIVATE, *matched)]) == 2
    assert "batch" in capfd.readouterr().err
    assert not runs.exists()


@pytest.mark.parametrize(
    ("model", "more"),
    [
        pytest.param("plain", PRIVATE, marks=pytest.mark.extended),
        pytest.param("lstm", PRIVATE, marks=pytest.mark.extended),
        ("gru", []),
        ("norm", []),
        ("norm", [*PRIVATE, "model.train=head"]),
    ],
)
def test_what_can_be_done_is_done(model: str, more: list[str], tmp_path: Path) -> None:
    assert (
        cli.main(["run", *words("fedavg", model, tmp_path / "runs", "fedavg.epochs=1", *more)]) == 0
    )


def test_the_step_draws_from_nothing_that_the_run_does(tmp_path: Path) -> None:
    import torch

    from common.config.loading import load
    from nectar.arguments import parse_arguments
    from nectar.engines.preflight import check

    config = load(parse_arguments(words("fedavg", "plain", tmp_path / "runs", *PRIVATE)))
    before, begun = torch.get_rng_state(), time.monotonic()
    check(config)
    assert time.monotonic() - begun < 20
    assert torch.equal(before, torch.get_rng_state())
