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

def norm(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes))

def plain(shape, classes):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Flatten(), nn.Dropout(0.2),
        nn.Linear(144, classes),
    )
"""

PRIVATE = ["privacy.noise_multiplier=1", "privacy.counts=public"]


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_users_private_models.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "a_users_private_models", raising=False)


def words(method: str, model: str, runs: Path, *more: str) -> list[str]:
    own = f"model.name=a_users_private_models:{model}"
    sites = ["federation.sites=3", "rounds=1", f"output-dir={runs}"]
    return [method, *sites, *([own] if model else []), *more]


@pytest.mark.sweep
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
