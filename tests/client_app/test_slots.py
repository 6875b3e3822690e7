"""A device's memory by slots: what is not written again stays, and is not copied."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from flwr.app import RecordDict
from tiny import Tiny

from client_app.device import DeviceClient, phase
from client_app.state import ContextState, DeviceState, DirectoryState
from common.samples.inputs import Samples
from common.wire.weights import Weights


class Remembering(DeviceClient):
    """Writes slot "a" in odd rounds and "b" in the second, and tells what it recalls."""

    @phase("train")
    def train(self, w: Weights) -> Weights:
        """Return the weights as they came."""
        a, b = self.recall("a"), self.recall("b")
        self.report(a=-1 if a is None else float(a["x"]), b=-1 if b is None else float(b["x"]))
        if self.server_round % 2:
            self.remember({"x": torch.tensor(float(self.server_round))}, "a")
        if self.server_round == 2:
            self.remember({"x": torch.tensor(20.0)}, "b")
        return w


@pytest.mark.parametrize("kind", ["directory", "context"])
def test_slots_follow_the_rounds_that_were_taken(tmp_path: Path, kind: str) -> None:
    tiny, context = Tiny(tmp_path, "fedavg"), RecordDict()

    def told(number: int, taken: int) -> tuple[float, float]:
        state: DeviceState = ContextState(context)
        if kind == "directory":
            state = DirectoryState(tmp_path, "record", "site")
        one = Samples.of(torch.ones(1, 1, 1, 1), torch.ones(1, dtype=torch.int64))
        client = Remembering(tiny.run, "site", one, one, state)
        config = {"server-round": number, "phase": "train", "taken": taken}
        figures = client.fit(tiny.weights.encode(), config)[2]
        return float(figures["a"]), float(figures["b"])

    assert told(1, 0) == (-1, -1)
    assert told(2, 1) == (1, -1)
    assert told(3, 2) == (1, 20)
    assert told(4, 2) == (1, 20)  # round 3 was not taken
    assert told(5, 4) == (1, 20)
    assert told(6, 5) == (5, 20)
    assert told(8, 6) == (5, 20)
