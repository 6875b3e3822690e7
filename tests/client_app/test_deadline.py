"""A site stops when the server does: each instruction carries the seconds that are left, looked at between steps."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from federation import run
from flwr.app import ConfigRecord, Message, RecordDict
from small import Small
from torch import Tensor, nn
from torch.nn import functional

import client_app.draws
from client_app.app import app as client_app_of_sites
from client_app.draws import Deadline
from client_app.feddpms import FedDPMSClient
from client_app.state import ContextState
from common.config.loading import load
from common.division import Division
from common.errors import FederationError
from common.samples.inputs import Samples
from common.specs.feddpms import start_decoder
from common.specs.updates import SECONDS_LEFT
from nectar.engines.local_grid import LocalGrid
from strategies.exchange.exchange import exchange

pytestmark = pytest.mark.promise(
    "A federation in operation",
    "A site stops computing when its round is over",
)

ENDLESS = [
    ("fedavg", "fedavg.epochs=100000"),
    ("feddm", "feddm.iterations=100000"),
    ("fedsynth", "model.norm=none fedsynth.iterations=100000 fedsynth.rate=6"),
    ("masking", "masking.rate=2 masking.epochs=100000"),
    ("topk", "topk.rate=8 topk.epochs=100000"),
]


@pytest.mark.sweep
@pytest.mark.parametrize(("method", "settings"), ENDLESS)
def test_a_site_stops_computing_when_the_round_s_time_is_over(
    small: Small, monkeypatch: pytest.MonkeyPatch, method: str, settings: str
) -> None:
    """It computed on for nine minutes, and was busy for the next run. By the clock here each look takes a minute."""
    minutes = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: 60.0 * next(minutes))
    monkeypatch.setattr(client_app.draws, "time", clock)
    words = f"{settings} federation.sites=1 federation.round_deadline=1200"
    with pytest.raises(FederationError, match=r"partition-0: ran out of the round's time \(1[12]"):
        run(small(method=method, rounds=1, set=words))
    assert 20 < next(minutes) < 30


def test_copies_that_are_never_taken_for_their_class_end_with_the_round(small: Small) -> None:
    """The server chooses how often a site draws them."""
    words = (
        f"model.name=vae model.depth=1 model.embedding=4 feddpms.max_draws={10**9} feddpms.copies=4"
    )
    made = Division(load(small(method="feddpms", set=words))).run
    x, y = torch.zeros(4, *made.info.shape), torch.arange(4)
    samples, state = Samples.of(x, y), ContextState(RecordDict())
    client = FedDPMSClient(made, "north", samples, samples, state)
    client.begin({"server-round": 1, SECONDS_LEFT: 0.3})

    class Other(nn.Module):
        """Takes whatever it sees for class 9."""

        def forward(self, images: Tensor) -> Tensor:
            return functional.one_hot(torch.full((len(images),), 9), 10)

    means, labels, decoder = torch.zeros(2, 4), torch.arange(2), start_decoder(made)
    with pytest.raises(FederationError, match="ran out of the round's time"):
        client._copies(means, labels, decoder, Other())  # type: ignore[arg-type]


def test_each_instruction_carries_what_is_left_of_its_own_wave(small: Small) -> None:
    class Slow(LocalGrid):
        """Takes a while for each message."""

        def _call(self, message: Message) -> Message:
            left.append(message.content.config_records["config"][SECONDS_LEFT])
            time.sleep(0.1)
            return super()._call(message)

    left: list[Any] = []
    grid = Slow(client_app_of_sites, 2, small())
    asked = [
        Message(RecordDict({"config": ConfigRecord({"class-counts": False})}), i, "query.roll_call")
        for i in grid.get_node_ids()
    ]
    assert len(list(exchange(grid, asked, deadline=600.0, wave=1))) == 2
    assert 0 < left[1] <= left[0] - 0.1 < 600.0


def test_a_look_at_the_clock_costs_next_to_nothing() -> None:
    """A step of the smallest training here takes a millisecond."""
    deadline = Deadline(3600.0)
    begun = time.thread_time()
    for _ in range(10_000):
        deadline.check()
    assert time.thread_time() - begun < 0.5


def test_the_sentence_names_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    deadline = Deadline.of({SECONDS_LEFT: 30.0})
    deadline.check()
    later = time.monotonic() + 31
    monkeypatch.setattr(client_app.draws.time, "monotonic", lambda: later)
    with pytest.raises(FederationError, match=r"^ran out of the round's time \(30 s\)$"):
        deadline.check()
    Deadline.of({}).check()
