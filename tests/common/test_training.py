"""The local loop against steps worked out by hand, and what its options change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from common.learning import compute
from common.learning.compute import pieces
from common.learning.task import Classification, NextToken
from common.learning.training import (
    Gradients,
    Local,
    Objective,
    Trained,
    evaluate,
    plain_gradient,
    train,
    weighted,
)
from common.models import build
from common.models.lstm import LSTM
from common.samples.inputs import Samples
from common.settings.fedavg import TrainingSettings
from synth import descent

X = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).reshape(2, 2, 1, 1)
Y = torch.tensor([0, 1])


def linear() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False))
    nn.init.zeros_(model[1].weight)
    return model


def settings(**changes: Any) -> TrainingSettings:
    return TrainingSettings(**{"epochs": 1, "lr": 1.0, "batch": 2, **changes})


def run(
    model: nn.Module,
    chosen: TrainingSettings,
    objective: Objective,
    samples: Samples | None = None,
    steps: int = 0,
) -> Trained:
    generator = torch.Generator().manual_seed(1)
    local, given = Local(objective=objective), samples or Samples.of(X, Y)
    return train(model, given, chosen, Classification(2), generator, local=local, steps=steps)


def test_gradient_noise_moves_every_number_by_its_own_draw_from_the_generators_seed() -> None:
    """Of the deviation that is asked for, the same again for the same seed, and beside a gradient that is the same."""
    samples = Samples.of(torch.zeros(4, 1, 100, 100), torch.tensor([0, 1, 0, 1]))

    def ended(noise: float, seed: int, steps: int = 1) -> Tensor:
        model = nn.Sequential(nn.Flatten(), nn.Linear(10_000, 2, bias=False))
        nn.init.zeros_(model[1].weight)
        draws = torch.Generator().manual_seed(seed)
        train(
            model,
            samples,
            settings(gradient_noise=noise, batch=4),
            Classification(2),
            draws,
            steps=steps,
        )
        weight: Tensor = model[1].weight.detach()
        return weight

    assert not ended(0, 1).any()
    moved = ended(0.3, 1)
    assert float(moved.std()) == pytest.approx(0.3, rel=0.02)
    assert abs(float(moved.mean())) < 0.01
    assert torch.equal(moved, ended(0.3, 1))
    assert not torch.equal(moved, ended(0.3, 2))
    assert float(ended(0.3, 1, steps=4).std()) == pytest.approx(0.6, rel=0.02)


def test_one_full_batch_step_by_hand() -> None:
    """At w = 0 both softmaxes are (1/2, 1/2), so dL/dw = mean_i (p - e_y) x_i^T = [[-1/4, 1/4], [1/4, -1/4]]."""
    model = linear()
    train(model, Samples.of(X, Y), settings(), Classification(2), torch.Generator())
    expected = torch.tensor([[0.25, -0.25], [-0.25, 0.25]])
    assert torch.allclose(model[1].weight, expected)


def test_weights_of_examples_by_hand() -> None:
    """With weights (2, 0) only the first example counts, at the size of a mean over two: dL/dw = (p - e_0) x_0^T."""
    model = linear()
    task = Classification(2)
    local = Local(objective=weighted(task, torch.tensor([2.0, 0.0])))
    train(model, Samples.of(X, Y), settings(), task, torch.Generator(), local=local)
    assert torch.allclose(model[1].weight, torch.tensor([[0.5, 0.0], [-0.5, 0.0]]))


def test_momentum_and_weight_decay_by_hand() -> None:
    """Two steps of v <- m v + g + d w, w <- w - v, with g constant (a linear objective)."""
    model = linear()

    def constant_slope(net: nn.Module, x: Tensor, y: Tensor, at: Tensor) -> Tensor:
        return model[1].weight.sum()

    chosen = settings(epochs=2, momentum=0.5, weight_decay=0.1)
    run(model, chosen, constant_slope)
    w1 = -1.0
    v2 = 0.5 * 1.0 + 1.0 + 0.1 * w1
    assert torch.allclose(model[1].weight, torch.full((2, 2), w1 - v2))


def test_every_example_is_seen_once_an_epoch_and_the_rest_is_a_smaller_batch() -> None:
    seen: list[Tensor] = []

    def spy(net: nn.Module, x: Tensor, y: Tensor, at: Tensor) -> Tensor:
        seen.append(at)
        return net(x).sum()

    samples = Samples.of(torch.randn(7, 2, 1, 1), torch.zeros(7, dtype=torch.int64))
    done = run(linear(), settings(epochs=2, batch=3), spy, samples)
    assert done.steps == 6
    assert [len(s) for s in seen] == [3, 3, 1, 3, 3, 1]
    assert torch.cat(seen[:3]).sort().values.tolist() == list(range(7))
    assert torch.cat(seen[:3]).tolist() != torch.cat(seen[3:]).tolist()


@pytest.mark.parametrize("steps", [1, 3, 5, 8])
def test_a_number_of_steps_cuts_the_last_pass_short(steps: int) -> None:
    """Batches of 3, 3, 1 a pass, whatever epochs says; the steps are those that passes would have made."""
    seen: list[Tensor] = []

    def spy(net: nn.Module, x: Tensor, y: Tensor, at: Tensor) -> Tensor:
        seen.append(at)
        return net(x).sum()

    samples = Samples.of(torch.ones(7, 2, 1, 1), torch.zeros(7, dtype=torch.int64))
    chosen = settings(epochs=3, batch=3)
    done = run(linear(), chosen, spy, samples, steps=steps)
    assert done.steps == len(seen) == steps
    by_steps, seen = seen, []
    run(linear(), chosen, spy, samples)
    assert [s.tolist() for s in by_steps] == [s.tolist() for s in seen[:steps]]


def test_what_runs_behind_a_step_runs_behind_every_step() -> None:
    model = linear()

    def back_to_zero(net: nn.Module) -> None:
        with torch.no_grad():
            net[1].weight.zero_()

    local = Local(after_step=back_to_zero)
    train(
        model,
        Samples.of(X, Y),
        settings(epochs=3),
        Classification(2),
        torch.Generator(),
        local=local,
    )
    assert not model[1].weight.any()


def test_a_penalty_counts_beside_the_loss_and_is_not_clipped() -> None:
    """g = (3, 4) of the objective is clipped to length 1, the penalty's 10 w is not: w <- w - (0.6, 0.8) - 10 w."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 1, bias=False))
    start = torch.tensor([[1.0, -1.0]])
    model[1].weight.data.copy_(start)
    slope = torch.tensor([[3.0, 4.0]])
    local = Local(
        objective=lambda net, x, y, at: (slope * net[1].weight).sum(),
        penalty=lambda net: 5 * net[1].weight.square().sum(),
    )
    chosen = settings(clip_norm=1.0)
    done = train(model, Samples.of(X, Y), chosen, Classification(2), torch.Generator(), local=local)
    assert torch.allclose(model[1].weight, start - slope / 5 - 10 * start)
    assert done.loss == pytest.approx(-1.0)


def test_a_loss_in_half_precision_has_its_mean_in_float32() -> None:
    """bfloat16 has 8 bits: 1 + 1 + ... ends at 256 there, and 512 batches of loss 1 would have a mean of 1/2."""

    def objective(net: nn.Module, x: Tensor, y: Tensor, at: Tensor) -> Tensor:
        slope: Tensor = (0 * net[1].weight.sum() + 1).bfloat16()
        return slope

    samples = Samples.of(X.repeat(256, 1, 1, 1), Y.repeat(256))
    assert run(linear(), settings(batch=1), objective, samples).loss == 1.0


def test_the_learning_rate_decays_from_round_to_round() -> None:
    """lr 1 x 0.5 ** 2 in round 3, along the constant slope 1."""
    model = linear()
    local = Local(objective=lambda net, x, y, at: net[1].weight.sum())
    done = train(
        model,
        Samples.of(X, Y),
        settings(lr_decay=0.5),
        Classification(2),
        torch.Generator(),
        local=local,
        server_round=3,
    )
    assert torch.equal(model[1].weight, torch.full((2, 2), -0.25))
    assert done.lr == 0.25


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_takes_torchs_steps(weight_decay: float) -> None:
    model, other = linear(), linear()
    chosen = settings(epochs=5, lr=0.1, weight_decay=weight_decay, local_optimizer="adam")
    train(model, Samples.of(X, Y), chosen, Classification(2), torch.Generator())
    theirs = torch.optim.Adam(other.parameters(), 0.1, weight_decay=weight_decay)
    for _ in range(5):
        theirs.zero_grad()
        nn.functional.cross_entropy(other(X), Y).backward()
        theirs.step()
    assert torch.allclose(model[1].weight, other[1].weight, rtol=1e-6, atol=1e-7)


def test_a_per_example_rule_without_a_bound_is_plain_training() -> None:
    """Any rule goes with any objective: gradients one example at a time, averaged, are the batch's."""

    def by_example(
        net: nn.Module, objective: Objective, x: Tensor, y: Tensor, at: Tensor
    ) -> Tensor:
        total = torch.zeros(())
        for i in range(len(y)):
            loss = objective(net, x[i : i + 1], y[i : i + 1], at[i : i + 1]) / len(y)
            loss.backward()
            total += loss.detach()
        return total

    samples = Samples.of(torch.randn(12, 2, 1, 1), torch.randint(2, (12,)))
    ends = []
    for rule in (plain_gradient, by_example):
        model = linear()
        train(
            model,
            samples,
            settings(epochs=2, batch=5),
            Classification(2),
            torch.Generator().manual_seed(1),
            gradients=Gradients(rule),
        )
        ends.append(model[1].weight.detach())
    torch.testing.assert_close(*ends, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("batch", [1, 2, 3, 100])
def test_an_evaluation_does_not_depend_on_its_batches(batch: int) -> None:
    """Three of four right, class 0 always (2 of 2), class 1 once (1 of 2), class 2 absent."""
    model = nn.Flatten()
    outputs = torch.tensor([[9.0, 0, 0], [9, 0, 0], [0, 9, 0], [9, 0, 0]]).reshape(4, 3, 1, 1)
    samples = Samples.of(outputs, torch.tensor([0, 0, 1, 1]))
    found = evaluate(model, samples, Classification(3), batch)
    assert found.accuracy == 0.75
    assert found.per_class[:2] == (1.0, 0.5)
    assert found.per_class[2] != found.per_class[2]
    by_hand = torch.nn.functional.cross_entropy(outputs.reshape(4, 3), samples.labels)
    assert found.loss == pytest.approx(float(by_hand), rel=1e-6)


def test_a_model_whose_own_train_was_put_in_its_place_has_it_called() -> None:
    model = linear()
    called: list[bool] = []

    def told(mode: bool = True) -> nn.Module:
        called.append(mode)
        return nn.Module.train(model, mode)

    model.train = told  # type: ignore[method-assign]
    train(model, Samples.of(X, Y), settings(), Classification(2), torch.Generator())
    assert called == [True]


def test_a_layer_that_stands_in_two_places_is_moved_once_a_step() -> None:
    """y = w (w x) of w = 1, x = 1: one step of rate 0.25 along dy/dw = 2 w x = 2 gives 1/2, two steps would give 0."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    one = Samples.of(torch.ones(1, 1), torch.zeros(1, dtype=torch.int64))

    def product(model: nn.Module, x: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
        return model(x).sum()

    run(nn.Sequential(layer, layer), settings(lr=0.25), product, one)
    assert layer.weight.item() == 0.5


def test_a_parameter_of_two_layers_is_moved_once_a_step() -> None:
    """As above, with two layers that have one matrix, such as a text model's first and last."""
    first, last = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    nn.init.ones_(first.weight)
    last.weight = first.weight
    one = Samples.of(torch.ones(1, 1), torch.zeros(1, dtype=torch.int64))

    def product(model: nn.Module, x: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
        return model(x).sum()

    run(nn.Sequential(first, last), settings(lr=0.25), product, one)
    assert first.weight.item() == 0.5


SETTINGS = [
    {},
    {"momentum": 0.9, "weight_decay": 0.1},
    {"local_optimizer": "adam"},
    {"clip_norm": 0.01},
]


def squares(model: nn.Module) -> Tensor:
    return torch.stack([p.square().sum() for p in model.parameters()]).sum()


def trained(
    model: nn.Module, chosen: TrainingSettings, local: Local, precision: str = "float32"
) -> list[Tensor]:
    drawn = torch.Generator().manual_seed(3)
    if isinstance(model, LSTM):
        tokens = torch.randint(2, 10, (5, 13), generator=drawn)
        samples, task = Samples(tokens[:, :-1], tokens[:, 1:]), NextToken(10)
    else:
        images = torch.randn(5, 3, 32, 32, generator=drawn)
        samples, task = Samples.of(images, torch.arange(5)), Classification(10)
    order = torch.Generator().manual_seed(1)
    train(model, samples, chosen, task, order, local=local, precision=precision)
    return list(model.state_dict().values())


@pytest.mark.sweep
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("changes", SETTINGS)
@pytest.mark.parametrize("name", ["convnet", "vit", "lstm", "a penalty"])
def test_a_large_model_that_moves_by_each_gradient_has_the_numbers_of_whole_steps(
    monkeypatch: pytest.MonkeyPatch, name: str, changes: dict[str, Any], precision: str
) -> None:
    """The LSTM's first and last layer have one matrix, whose gradient is there when both have given theirs."""
    local = Local(penalty=squares if name == "a penalty" else None)
    name, chosen = name.replace("a penalty", "convnet"), settings(lr=0.1, epochs=2, **changes)
    shape = (12,) if name == "lstm" else (3, 32, 32)
    whole, early = (build(name, shape, 10, depth=1, width=8, norm="batch") for _ in range(2))
    expected = trained(whole, chosen, local, precision)
    monkeypatch.setattr(compute, "_LARGE", 0)
    found = trained(early, chosen, local, precision)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(("large", "most"), [(True, 1), (False, 4)])
def test_a_large_model_has_one_gradient_at_a_time(
    monkeypatch: pytest.MonkeyPatch, large: bool, most: int
) -> None:
    model, seen = build("mlp", (3, 32, 32), 10, width=8), list[int]()
    plain = descent.SGD.step

    def counted(optimiser: descent.SGD) -> None:
        seen.append(sum(p.grad is not None for p in model.parameters()))
        plain(optimiser)

    monkeypatch.setattr(descent.SGD, "step", counted)
    if large:
        monkeypatch.setattr(compute, "_LARGE", 0)
    trained(model, settings(), Local())
    assert max(seen) == most
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def test_a_large_model_of_a_users_own_takes_whole_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its backward pass may need a parameter whose gradient is there: torch refuses one that has moved by then."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3072, 10), nn.Linear(10, 10)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x.flatten(1))
            return h @ self.last.weight.detach() + self.last(h)

    monkeypatch.setattr(compute, "_LARGE", 0)
    model = Own()
    before = model.last.weight.detach().clone()
    trained(model, settings(), Local())
    assert not torch.equal(model.last.weight, before)


# ---- large tensors in pieces -------------------------------------------------------------------------


LARGE = 3 * 2**16 + 7


def test_a_small_tensor_is_one_piece_as_it_is() -> None:
    small = torch.arange(6.0).reshape(2, 3)
    ((piece,),) = pieces(small)
    assert piece is small


def test_what_is_done_to_the_pieces_is_done_to_the_tensor() -> None:
    total, added = torch.zeros(LARGE, dtype=torch.float64), torch.rand(LARGE)
    sizes = []
    for part, values in pieces(total, added):
        part.add_(values, alpha=3)
        sizes.append(len(part))
    assert sizes == [2**16, 2**16, 2**16, 7]
    assert torch.equal(total, torch.zeros(LARGE, dtype=torch.float64).add_(added, alpha=3))


def test_pieces_of_tensors_that_lie_otherwise_belong_together() -> None:
    one = torch.rand(2**10, 2**9)
    for left, right in pieces(one, one.T.contiguous().T):
        assert torch.equal(left, right)
