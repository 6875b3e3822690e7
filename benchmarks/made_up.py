"""Sites with synthetic data, so that rounds can be measured on a machine without any data set."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import torch
from flwr.app import ArrayRecord, ConfigRecord
from torch import Tensor

import client_app.app
import client_app.site
from common.config.loading import load
from common.division import Division
from common.draws.seeding import generator
from common.learning.run import Run
from common.samples.inputs import Samples
from nectar.engines.local_grid import LocalGrid
from server_app.app import make_strategy
from strategies.base import Strategy
from strategies.exchange.exchange import exchange

RunConfig = dict[str, str | int | float | bool]


@contextmanager
def sites_with(data: Sequence[Samples]) -> Iterator[None]:
    """Let site k learn from ``data[k]``, round and round again, and hold nothing out."""

    nothing = [Samples.of(each.raw[:0].float(), each.labels[:0]) for each in data]

    def site_samples(run: Run, site: str, context: object) -> tuple[Samples, Samples]:
        at = int(site.rpartition("-")[2]) % len(data)
        return data[at], nothing[at]

    def data_here(*_: object) -> SimpleNamespace:
        return SimpleNamespace(checksum="0" * 64)

    with (
        patch.object(client_app.app, "site_samples", site_samples),
        patch.object(client_app.app, "data_here", data_here),
        patch.object(client_app.site, "data_here", data_here),
    ):
        yield


@dataclass(frozen=True)
class InProcess:
    """A federation in this process.

    Attributes
    ----------
    model : torch.nn.Module
        The model that each round begins with.
    floats : list of (images, labels)
        The sites' examples as a training loop takes them, float32 [n, C, H, W] and int64 [n].
    one_round : callable
        Carries out the round of a number, and returns the weights that the strategy makes of it.
    """

    model: torch.nn.Module
    floats: list[tuple[Tensor, Tensor]]
    one_round: Callable[[int], ArrayRecord]


@contextmanager
def in_process(config: RunConfig, sites: int, images: int) -> Iterator[InProcess]:
    """Let so many sites, of so many random ``images`` each, carry out rounds that begin with the same weights."""
    with tempfile.TemporaryDirectory() as directory:
        config = {"output-dir": directory, "data-dir": directory, **config}
        made = Division(load(config)).run
        data = [_samples(made, k, images) for k in range(sites)]
        strategy, model = make_strategy(made), made.build_model()
        strategy.record_id = "benchmark"
        together = made.config.compute.batched != "off"
        grid = LocalGrid(client_app.app.app, sites, config, trains_together=together)
        start = ArrayRecord({name: value.clone() for name, value in model.state_dict().items()})

        given = [(each.inputs(slice(None)), each.labels) for each in data]
        with sites_with(data):
            yield InProcess(model, given, partial(carry_out, strategy, grid, start))


def carry_out(
    strategy: Strategy, grid: LocalGrid, sent: ArrayRecord, server_round: int
) -> ArrayRecord:
    """Return what the strategy makes of the round that ``sent`` begins: messages, training, judging, averaging."""
    messages = strategy.configure_train(server_round, sent, ConfigRecord(), grid)
    most = strategy.round.max_reply_bytes
    replies = exchange(grid, messages, deadline=3600.0, max_bytes=most)
    arrays, _ = strategy.aggregate_train(server_round, replies)
    assert arrays is not None
    return arrays


def floats(made: Run, k: int, images: int) -> Samples:
    """Return site k's random images as a model takes them."""
    rng = generator(0, "benchmark", k)
    values = torch.randn(images, *made.info.shape, generator=rng)
    return Samples.of(values, torch.randint(0, len(made.info.classes), (images,), generator=rng))


def _samples(made: Run, k: int, images: int) -> Samples:
    rng, channels = generator(0, "benchmark", k), made.info.shape[0]
    return Samples(
        torch.randint(0, 256, (images, *made.info.shape), generator=rng, dtype=torch.uint8),
        torch.randint(0, len(made.info.classes), (images,), generator=rng),
        torch.full((channels, 1, 1), 1 / 64.0),
        torch.full((channels, 1, 1), -2.0),
    )
