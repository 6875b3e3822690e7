"""FedGEN: its loss by hand, what travels when, FedAvg where latents count nothing, and what a run keeps."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from federation import numbers, run
from small import Small
from torch import Tensor, nn

from client_app.fedgen import guided
from common.config.loading import load
from common.division import Division
from common.errors import ConfigError, FederationError
from common.learning.task import Classification
from common.learning.training import Local
from common.models import Classifier
from common.sites import Site
from common.specs.fedgen import CLASSES, GENERATOR, head_of, new_generator
from common.wire.bundle import Bundle
from common.wire.tensors import CLASS_LIST, Tensors
from common.wire.weights import Weights
from server_app.app import make_strategy
from strategies.exchange.replies import Upload

TINY = "fedgen.hidden=8 fedgen.noise=4 fedgen.generator_steps=3 fedgen.generator_batch=16"


class Plane(Classifier):
    """Two pixels are the embedding; two logits."""

    def __init__(self) -> None:
        super().__init__((1, 1, 2))
        self.head = nn.Linear(2, 2)

    def embed(self, x: Tensor) -> Tensor:
        return x.flatten(1)

    def classify(self, h: Tensor) -> Tensor:
        logits: Tensor = self.head(h)
        return logits


class Corners(nn.Module):
    """Draws the latent of a class, whatever the noise: (1, 0), (0, 1)."""

    def draw_noise(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.rand(count, 1, generator=generator)

    def forward(self, eps: Tensor, labels: Tensor) -> Tensor:
        return torch.eye(2)[labels]


def bytes_down(record: Any) -> list[int]:
    return [sum(line["bytes"]["down"].values()) for line in record.metrics()]


def loss_of(local: Local, model: Classifier, x: Tensor, y: Tensor) -> Tensor:
    """Return the objective of one example, with what it draws for it."""
    assert local.draw is not None
    assert local.objective is not None
    return local.objective(model, x, y, torch.tensor([0]), *local.draw(model, y, None))


# ---- the device -------------------------------------------------------------------------------------------


def test_the_devices_loss_by_hand() -> None:
    """The head is the identity, x = (2, 0) of class 1, and class 0 alone is drawn, three times.

    ln(1 + e^2) of its own. Of the latent (0, 1) of class 1, q = (1, e) / (1 + e) is held against p = (e^2, 1) / (1 +
    e^2), and the latents (1, 0) cost ln(1 + e^-1) each, 3 / 1 times.
    """
    model, x, y = Plane(), torch.tensor([[[[2.0, 0.0]]]]), torch.tensor([1])
    with torch.no_grad():
        model.head.weight.copy_(torch.eye(2))
        model.head.bias.zero_()
    local = guided(
        Classification(2),
        Corners(),  # type: ignore[arg-type]
        torch.tensor([0]),
        torch.Generator().manual_seed(1),
        weight=0.5,
        drawn=3,
        steps=1,
    )
    q = [1 / (1 + math.e), math.e / (1 + math.e)]
    p = [math.exp(2) / (1 + math.exp(2)), 1 / (1 + math.exp(2))]
    divergence = sum(a * math.log(a / b) for a, b in zip(q, p, strict=True))
    own, drawn = math.log(1 + math.exp(2)), math.log(1 + math.exp(-1))
    found = [float(loss_of(local, model, x, y).detach()) for _ in range(2)]
    assert found[0] == pytest.approx(own + 0.5 * divergence + 0.5 * 3 * drawn, rel=1e-6)
    assert found[1] == pytest.approx(own, rel=1e-6), "its only step with latents is over"


@pytest.mark.extended
def test_no_gradient_reaches_the_head_through_what_is_matched() -> None:
    """With nothing drawn of weight, what moves the head are CE(x, y) and the KL's p(x): the target stands still."""
    model, x, y = Plane(), torch.tensor([[[[2.0, -1.0]]]]), torch.tensor([1])
    target = model.classify(torch.eye(2)[y]).softmax(1).detach()
    logits = model(x)
    expected = torch.autograd.grad(
        nn.functional.cross_entropy(logits, y)
        + (target * (target.log() - logits.log_softmax(1))).sum()
        + nn.functional.cross_entropy(model.classify(torch.eye(2)[:1]), torch.tensor([0])),
        list(model.parameters()),
    )
    draws = torch.Generator().manual_seed(1)
    local = guided(
        Classification(2),
        Corners(),
        torch.tensor([0]),
        draws,
        weight=1.0,
        drawn=0,
        steps=1,  # type: ignore[arg-type]
    )
    found = torch.autograd.grad(loss_of(local, model, x, y), list(model.parameters()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.extended
def test_latents_end_with_their_epochs(small: Small) -> None:
    """Of one epoch of two, the second is FedAvg's: another number than with latents in both."""
    settings = f"{TINY} fedgen.epochs=2"
    losses = {
        epochs: numbers(
            run(small(method="fedgen", set=f"{settings} fedgen.epochs_with_latents={epochs}"))
        )
        for epochs in (1, 2, 20)
    }
    assert losses[2] == losses[20]
    assert losses[1][2]["test"] != losses[2][2]["test"]


# ---- what equals FedAvg -----------------------------------------------------------------------------------


@pytest.mark.extended
def test_latents_change_rounds_from_the_second_on(small: Small) -> None:
    generated, plain = (
        [n["test"]["loss"] for n in numbers(run(small(method=m, rounds=2, set=s)))]
        for m, s in (("fedgen", TINY), ("fedavg", ""))
    )
    assert generated[:2] == plain[:2]
    assert generated[2] != plain[2]


# ---- what travels -----------------------------------------------------------------------------------------


@pytest.mark.extended
def test_the_generator_travels_from_the_second_round_on(small: Small) -> None:
    """With 10 classes, noise of 4, 8 hidden units: 14 x 8 + 8 and 8 x d + d, and batch norm's 4 x 8, in float32."""
    config = small(method="fedgen", rounds=3, set=TINY)
    record, plain = run(config), run(small(method="fedavg", rounds=3))
    latent = head_of(Division(load(config)).run).latent
    more = [a - b for a, b in zip(bytes_down(record), bytes_down(plain), strict=True)]
    sent = 3 * 4 * (14 * 8 + 8 + 8 * latent + latent + 4 * 8)
    assert max(more[:2]) < 3_000
    assert all(sent < each < sent + 12_000 for each in more[2:])
    up = [[line["floats_up"] for line in r.metrics()] for r in (record, plain)]
    assert up[0] == up[1]
    assert all("generator-loss" in line["notes"] for line in record.metrics()[1:])


def test_a_class_that_nobody_has_is_never_drawn(small: Small) -> None:
    """Two sites with two classes of ten: G learns of these, and devices draw of these alone."""
    made = Division(load(small(method="fedgen", set=TINY))).run
    strategy, start = make_strategy(made), Weights.of(made.build_model())
    counts = [(0, 5, 0, 0, 0, 0, 0, 2, 0, 0), (0, 7, *[0] * 8)]
    sites = [Site(f"s{i}", i, sum(c), class_counts=c) for i, c in enumerate(counts)]
    seen: list[Tensor] = []
    feature_generator = strategy._generator  # type: ignore[attr-defined]
    feature_generator.register_forward_pre_hook(lambda _, given: seen.append(given[1]))
    strategy.update(1, start, (Upload(s, start, s.examples, {}) for s in sites))
    assert set(torch.cat(seen).tolist()) == {1, 7}
    sent = strategy.instructions(2, start, sites)["s0"].payload
    assert isinstance(sent, Bundle)
    assert sent.part(CLASSES, Tensors)[CLASS_LIST].tolist() == [1, 7]


def test_the_generator_that_travels_is_the_one_that_was_trained(small: Small) -> None:
    made = Division(load(small(method="fedgen", set=TINY))).run
    strategy, start = make_strategy(made), Weights.of(made.build_model())
    site = Site("s", 1, 10, class_counts=(1,) * 10)
    before = Weights.of(new_generator(made))
    strategy.update(1, start, iter([Upload(site, start, 10, {})]))
    sent = strategy.instructions(2, start, [site])["s"].payload
    assert isinstance(sent, Bundle)
    moved = sent.part(GENERATOR, Weights).tensors
    trained = strategy.state_dict()["training"]
    assert all(torch.equal(t, trained[f"model.{name}"]) for name, t in moved.items())
    assert any(not torch.equal(t, before.tensors[name]) for name, t in moved.items())


# ---- what goes wrong --------------------------------------------------------------------------------------


def test_a_generator_that_diverges_ends_the_run_by_a_sentence(small: Small) -> None:
    config = small(method="fedgen", rounds=2, set=f"{TINY} fedgen.generator_lr=1e30")
    with pytest.raises(FederationError, match=r"round 1 is not kept: .* \(fedgen\.generator_lr\)"):
        run(config)


class Bent(nn.Module):
    """A network whose logits are no linear function of what it says its embedding is."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.last = nn.Linear(math.prod(shape), classes)

    def embed(self, x: Tensor) -> Tensor:
        return x.flatten(1)

    def classify(self, h: Tensor) -> Tensor:
        logits: Tensor = self.last(h.square())
        return logits

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.embed(x))


class Biasless(nn.Module):
    """A network of its user's own, whose last layer has another name and no bias."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 5), nn.ReLU())
        self.out = nn.Linear(5, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.layers(x))
        return logits


def test_another_last_layer_is_refused(small: Small) -> None:
    made = Division(load(small(method="fedgen", set=f"model.name={__name__}:Bent"))).run
    with pytest.raises(ConfigError, match="needs a linear last layer"):
        make_strategy(made)


def test_a_network_of_ones_own_may_call_its_last_layer_as_it_likes(small: Small) -> None:
    config = small(method="fedgen", set=f"{TINY} model.name={__name__}:Biasless")
    head = head_of(Division(load(config)).run)
    assert (head.weight, head.bias, head.latent) == ("out.weight", None, 5)
    assert len(run(config).metrics()) == 3
