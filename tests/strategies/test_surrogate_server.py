"""The server that keeps earlier rounds' sets: what it trains on, and how long."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from common.config.loading import load
from common.division import Division
from common.learning.training import Trained, train
from common.samples.inputs import Samples
from common.sites import Site
from common.wire.synthetic_images import SyntheticImages
from common.wire.weights import Weights
from strategies import image_training
from strategies.exchange.replies import Upload
from strategies.feddm import FedDM


class Spy:
    """Notes what the server trains on, and trains."""

    def __init__(self) -> None:
        self.images: list[int] = []
        self.steps: list[int] = []

    def __call__(self, model: Any, samples: Samples, *args: Any, **kwargs: Any) -> Trained:
        done = train(model, samples, *args, **kwargs)
        self.images.append(len(samples))
        self.steps.append(done.steps)
        return done


def uploads(images: int) -> list[Upload]:
    site = Site("partition-0", 1, examples=10)
    content = SyntheticImages(torch.randn(images, 1, 8, 8), torch.arange(images) % 10)
    return [Upload(site, content, 10, {})]


@pytest.mark.parametrize(
    ("keep", "trained_on"), [(1, [5, 7, 3, 6]), (3, [5, 12, 15, 16]), (0, [5, 12, 15, 21])]
)
def test_equal_work_whatever_the_server_keeps(
    monkeypatch: pytest.MonkeyPatch, keep: int, trained_on: list[int]
) -> None:
    """Sets of 5, 7, 3 and 6 images in four rounds: the union grows, the steps do not."""
    spy = Spy()
    monkeypatch.setattr(image_training, "train", spy)
    settings = f"model.width=8 feddm.keep={keep} image_training.steps=9 image_training.batch=4"
    run = Division(load({"set": settings})).run
    server = FedDM(run)
    weights = Weights.of(run.build_model())
    for server_round, images in enumerate([5, 7, 3, 6], start=1):
        weights = server.update(server_round, weights, uploads(images))
    assert spy.images == trained_on
    assert spy.steps == [9, 9, 9, 9]


def test_no_server_work_leaves_the_weights() -> None:
    run = Division(load({"set": "model.width=8 image_training.epochs=0"})).run
    weights = Weights.of(run.build_model())
    assert FedDM(run).update(1, weights, uploads(3)) is weights


def test_soft_labels_weigh_by_the_counts_of_their_classes() -> None:
    """One-hot they weigh as hard ones; half of each of two classes of 6 and 2 examples, as half of either."""
    server = FedDM(Division(load({"set": "model.width=8 feddm.weighting=counts"})).run)
    site = Site("partition-0", 1, examples=8, class_counts=(6, 2, *[0] * 8))
    hard = torch.tensor([0, 0, 1])
    one_hot = torch.nn.functional.one_hot(hard, 10).float()
    assert torch.equal(server._by_counts(site, one_hot), server._by_counts(site, hard))
    halves = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    soft = torch.nn.functional.pad(halves, (0, 8))
    assert server._by_counts(site, soft).tolist() == [4.0, 4.0]


def test_a_round_of_soft_labels_under_weighting_by_counts_learns() -> None:
    run = Division(
        load({"set": "model.width=8 feddm.weighting=counts image_training.epochs=2"})
    ).run
    weights = Weights.of(run.build_model())
    site = Site("partition-0", 1, examples=20, class_counts=(2,) * 10)
    images = SyntheticImages(torch.randn(4, 1, 8, 8), torch.rand(4, 10).softmax(1))
    learned = FedDM(run).update(1, weights, [Upload(site, images, 20, {})])
    assert not all(torch.equal(t, learned.tensors[n]) for n, t in weights.tensors.items())
