"""The server that keeps earlier rounds' sets: what it trains on, and how long."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from common.config.loading import load
from common.division import Division
from common.errors import PayloadError
from common.learning.training import Trained, train
from common.samples.inputs import Samples
from common.sites import Site
from common.wire.images import SyntheticImages, SyntheticImagesSpec
from common.wire.weights import Weights
from strategies import surrogate as image_training
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
    server = FedDM(Division(load({"set": "model.width=8 feddm.image_weighting=counts"})).run)
    site = Site("partition-0", 1, examples=8, class_counts=(6, 2, *[0] * 8))
    hard = torch.tensor([0, 0, 1])
    one_hot = torch.nn.functional.one_hot(hard, 10).float()
    assert torch.equal(server._by_counts(site, one_hot), server._by_counts(site, hard))
    halves = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    soft = torch.nn.functional.pad(halves, (0, 8))
    assert server._by_counts(site, soft).tolist() == [4.0, 4.0]


def test_a_share_that_is_almost_nothing_makes_no_weight_that_is_no_number() -> None:
    """6 examples over a share of 1e-45 are 6e45, which float32 has not: the image would count infinitely."""
    server = FedDM(Division(load({"set": "model.width=8 feddm.image_weighting=counts"})).run)
    site = Site("partition-0", 1, examples=8, class_counts=(6, 2, *[0] * 8))
    labels = torch.nn.functional.one_hot(torch.tensor([1, 1]), 10).float()
    labels[0, 0] = 1e-45
    assert server._by_counts(site, labels).tolist() == [7.0, 1.0]


class Soft(FedDM):
    soft = True


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([[0.5, 0.5], [0.1, 0.9]], None),
        ([[1.0, 0.0], [0.0, 1.0]], None),
        ([[1.5, -0.5], [0.1, 0.9]], "none may be below 0"),
        ([[1.0, 1.0], [0.1, 0.9]], "must sum to 1"),
        ([[0.0, 0.0], [0.1, 0.9]], "must sum to 1"),
    ],
)
def test_a_server_of_soft_labels_takes_shares_alone(
    labels: list[list[float]], said: str | None
) -> None:
    server = Soft(Division(load({"set": "model.width=8 feddm.start=noise"})).run)
    soft = torch.nn.functional.pad(torch.tensor(labels), (0, 8))
    sent = SyntheticImages(torch.zeros(2, 1, 8, 8), soft).encode()
    if said is None:
        assert torch.equal(server.expects().decode(sent).labels, soft)
        return
    with pytest.raises(PayloadError, match=said):
        server.expects().decode(sent)


def test_of_soft_labels_too_there_are_as_many_a_class_as_the_spec_says() -> None:
    spec = SyntheticImagesSpec((1, 8, 8), classes=3, ipc=2, soft=True, fewest=2)
    shares = torch.tensor([[0.6, 0.4, 0.0], [0.4, 0.6, 0.0], [0.4, 0.5, 0.1]])
    images = torch.zeros(3, 1, 8, 8)
    with pytest.raises(PayloadError, match=r"1 images of one class .* at least 2"):
        spec.decode(SyntheticImages(images, shares).encode())
    shares[0] = shares[1]
    spec.decode(SyntheticImages(images, shares).encode())


@pytest.mark.parametrize("weighting", ["uniform", "counts"])
def test_a_round_of_soft_labels_learns(weighting: str) -> None:
    words = f"model.width=8 feddm.image_weighting={weighting} image_training.epochs=2"
    run = Division(load({"set": words})).run
    weights = Weights.of(run.build_model())
    site = Site("partition-0", 1, examples=20, class_counts=(2,) * 10)
    images = SyntheticImages(torch.randn(4, 1, 8, 8), torch.rand(4, 10).softmax(1))
    server = FedDM(run)
    learned = server.update(1, weights, [Upload(site, images, 20, {})])
    shown = {run.info.classes[c] for c in images.labels.argmax(1).tolist()}
    assert set(server.notes()["not_sent"]) == set(run.info.classes) - shown
    assert not all(torch.equal(t, learned.tensors[n]) for n, t in weights.tensors.items())
