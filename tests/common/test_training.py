"""The local loop against steps worked out by hand, and what its options change."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from common.data import Samples
from common.settings.training import SGDSettings
from common.task import Classification
from common.training import evaluate, plain, train, weighted

X = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).reshape(2, 2, 1, 1)
Y = torch.tensor([0, 1])


def linear() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False))
    nn.init.zeros_(model[1].weight)
    return model


def settings(**changes: float) -> SGDSettings:
    return SGDSettings(**{"epochs": 1, "lr": 1.0, "batch": 2, **changes})


def test_one_full_batch_step_by_hand() -> None:
    """At w = 0 both softmaxes are (1/2, 1/2), so dL/dw = mean_i (p - e_y) x_i^T = [[-1/4, 1/4], [1/4, -1/4]]."""
    model = linear()
    train(model, Samples.of(X, Y), settings(), plain(Classification(2)), torch.Generator())
    expected = torch.tensor([[0.25, -0.25], [-0.25, 0.25]])
    assert torch.allclose(model[1].weight, expected)


def test_weights_of_examples_by_hand() -> None:
    """With weights (2, 0) only the first example counts, at the size of a mean over two: dL/dw = (p - e_0) x_0^T."""
    model = linear()
    objective = weighted(Classification(2), torch.tensor([2.0, 0.0]))
    train(model, Samples.of(X, Y), settings(), objective, torch.Generator())
    assert torch.allclose(model[1].weight, torch.tensor([[0.5, 0.0], [-0.5, 0.0]]))


def test_momentum_and_weight_decay_by_hand() -> None:
    """Two steps of v <- m v + g + d w, w <- w - v, with g constant (a linear objective)."""
    model = linear()

    def constant_slope(outputs: torch.Tensor, y: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return model[1].weight.sum()

    chosen = settings(epochs=2, momentum=0.5, weight_decay=0.1)
    train(model, Samples.of(X, Y), chosen, constant_slope, torch.Generator())
    w1 = -1.0
    v2 = 0.5 * 1.0 + 1.0 + 0.1 * w1
    assert torch.allclose(model[1].weight, torch.full((2, 2), w1 - v2))


def test_every_example_is_seen_once_an_epoch_and_the_rest_is_a_smaller_batch() -> None:
    seen: list[torch.Tensor] = []

    def spy(outputs: torch.Tensor, y: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        seen.append(at)
        return outputs.sum()

    samples = Samples.of(torch.randn(7, 2, 1, 1), torch.zeros(7, dtype=torch.int64))
    done = train(linear(), samples, settings(epochs=2, batch=3), spy, torch.Generator())
    assert done.steps == 6
    assert [len(s) for s in seen] == [3, 3, 1, 3, 3, 1]
    assert torch.cat(seen[:3]).sort().values.tolist() == list(range(7))
    assert torch.cat(seen[:3]).tolist() != torch.cat(seen[3:]).tolist()


@pytest.mark.parametrize("steps", [1, 3, 5, 8])
def test_a_number_of_steps_cuts_the_last_pass_short(steps: int) -> None:
    """Batches of 3, 3, 1 a pass, whatever epochs says; the steps are those that passes would have made."""
    seen: list[torch.Tensor] = []

    def spy(outputs: torch.Tensor, y: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        seen.append(at)
        return outputs.sum()

    samples = Samples.of(torch.ones(7, 2, 1, 1), torch.zeros(7, dtype=torch.int64))
    chosen = settings(epochs=3, batch=3)
    done = train(linear(), samples, chosen, spy, torch.Generator().manual_seed(1), steps=steps)
    assert done.steps == len(seen) == steps
    by_steps, seen = seen, []
    train(linear(), samples, chosen, spy, torch.Generator().manual_seed(1))
    assert [s.tolist() for s in by_steps] == [s.tolist() for s in seen[:steps]]


def test_what_runs_behind_a_step_runs_behind_every_step() -> None:
    model = linear()

    def back_to_zero() -> None:
        with torch.no_grad():
            model[1].weight.zero_()

    train(
        model,
        Samples.of(X, Y),
        settings(epochs=3),
        plain(Classification(2)),
        torch.Generator(),
        after_step=back_to_zero,
    )
    assert not model[1].weight.any()


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
