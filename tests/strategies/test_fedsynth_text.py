"""FedSynth on text: vectors in place of tokens."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
import torch
from federation import run

from common.config.loading import load
from common.division import Division
from common.wire.synthetic_batches import SyntheticBatches
from common.wire.weights import Weights
from server_app.checkpoint import Checkpoint
from strategies.exchange.replies import Upload
from strategies.fedsynth import FedSynth

# -- text -------------------------------------------------------------------------------------------

TEXT = (
    "fedsynth.labels=fixed fedsynth.rate=20 fedsynth.iterations=5 fedsynth.epochs=1 fedsynth.batch=5 "
    "fedsynth.lr=5 fedsynth.step_size=5"
)


@pytest.fixture
def said() -> Iterator[list[str]]:
    """Collect what is logged."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Keep()
    logging.getLogger("flwr").addHandler(handler)
    yield lines
    logging.getLogger("flwr").removeHandler(handler)


def text_config(asked: Callable[..., Any], words: str = "") -> dict[str, Any]:
    keys = asked(method="fedsynth")
    plain = " ".join(w for w in keys["set"].split() if not w.startswith("fedavg."))
    return {**keys, "set": f"{plain} {TEXT} {words}"}


def test_a_language_model_learns_from_sequences_of_vectors(
    asked: Callable[..., Any], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a tied output every parameter moves; the targets are tokens that the site's texts hold, never PAD."""
    sets: list[SyntheticBatches] = []
    plain = FedSynth.prepare

    def keep(self: FedSynth, server_round: int, weights: Weights, arrived: Upload) -> Upload:
        sets.append(cast(SyntheticBatches, arrived.payload))
        return plain(self, server_round, weights, arrived)

    monkeypatch.setattr(FedSynth, "prepare", keep)
    config = text_config(asked)
    record = run(config)
    losses = [line["test"]["loss"] for line in record.metrics()]
    assert losses[2] < losses[1] < losses[0]
    setup = Division(load(config)).run
    held = set(np.unique(Division(setup.config).dataset.train.labels).tolist()) - {0}
    assert len(sets) == 8
    for sent in sets:
        assert sent.inputs.shape[2:] == (10, 8)
        assert sent.labels.shape[2:] == (10,)
        assert set(sent.labels.unique().tolist()) <= held
        assert sent.floats == sent.inputs.numel() <= Weights.of(setup.build_model()).floats / 20
    start, end = setup.build_model().state_dict(), Checkpoint.load(record.last).weights
    assert all(not torch.equal(start[name], end[name]) for name in start)
    assert not any("no synthetic batch moved" in line for line in said)
    assert json.loads((record.directory / "partition.json").read_text())["classes"] == []


def test_vectors_cannot_move_an_embedding_of_its_own_and_the_log_says_so_once(
    asked: Callable[..., Any], said: list[str]
) -> None:
    config = text_config(asked, "model.tied=off")
    record = run(config)
    start = Division(load(config)).run.build_model().state_dict()
    end = Checkpoint.load(record.last).weights
    stayed = [name for name in start if torch.equal(start[name], end[name])]
    assert stayed == ["embedding.weight"]
    (warning,) = [line for line in said if "no synthetic batch moved" in line]
    assert "no synthetic batch moved embedding.weight:" in warning
