"""DP-SGD as the local loop's rule: its public numbers, its steps by hand, and what stays outside the clip."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from common.learning.steps import DPSGDSteps
from common.learning.task import Classification
from common.learning.training import Gradients, Local, dp_sgd, train
from common.privacy.accounting import epsilon
from common.privacy.events import Event
from common.samples.inputs import Samples
from common.settings.fedavg import TrainingSettings
from synth.private_release import Gaussian
from synth.row_draws import RowDraws

Y = torch.tensor([0, 0, 0])
X = torch.tensor([[3.0], [0.5], [-4.0]]).reshape(3, 1, 1, 1)
"""Under the objective w x the gradients of the three examples are these numbers."""


def settings(**changes: Any) -> TrainingSettings:
    return TrainingSettings(**{"epochs": 1, "lr": 1.0, "batch": 2, **changes})


def weight() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 1, bias=False))
    nn.init.ones_(model[1].weight)
    return model


def slope(model: nn.Module, x: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
    return model(x).mean()


def by_clip(clip: float) -> Gaussian:
    return Gaussian(0.0, clip, lambda shape: torch.full(tuple(shape), math.nan))


def run(
    model: nn.Module, local: Local, gaussian: Gaussian, *sampled: list[int], **changes: Any
) -> Any:
    return train(
        model,
        Samples.of(X, Y),
        settings(**changes),
        Classification(2),
        torch.Generator().manual_seed(1),
        local=local,
        gradients=Gradients(
            dp_sgd(gaussian, 2.0), [torch.tensor(at, dtype=torch.int64) for at in sampled]
        ),
    )


# ---- what is public --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "rate", "steps", "expected"),
    [
        ((64, 1, 640), 0.1, 10, 64),
        ((64, 3, 100), 0.64, 5, 64),  # ceil(3 / 0.64) = ceil(4.6875)
        ((64, 3, 10), 1.0, 3, 10),  # a smaller site gives all it has
        ((256, 20, 5000), 0.0512, 391, 256),
        ((10, 2, 100, 30), 0.1, 6, 10),  # a pass draws 30 of 100: 60 draws of 10
        ((64, 3, 100, 30), 0.3, 3, 30),  # or all of its 30 at once
    ],
)
def test_steps_draw_as_many_examples_as_passes_would(
    given: tuple[int, ...], rate: float, steps: int, expected: int
) -> None:
    assert DPSGDSteps.plan(*given) == DPSGDSteps(pytest.approx(rate), steps, expected)


def test_a_number_of_steps_of_ones_own() -> None:
    assert DPSGDSteps.of(512, 40, 2048) == DPSGDSteps(0.25, 40, 512)
    assert DPSGDSteps.of(512, 40, 100) == DPSGDSteps(1.0, 40, 100)


# ---- steps by hand ---------------------------------------------------------------------------------------


def test_steps_by_hand() -> None:
    """With C = 1 the gradients 3, 0.5 and -4 count 1, 0.5 and -1; the divisor is 2 whatever was drawn.

    Of the first two: w = 1 - (1 + 0.5) / 2 = 0.25. Of nobody, with noise of 3 x 1 x 0.1: w = 0.25 - 0.3 / 2 = 0.1.
    Of all three, without: w = 0.1 - 0.5 / 2 = -0.15.
    """
    drawn = iter([0.0, 0.1, 0.0])
    gaussian = Gaussian(3.0, 1.0, lambda shape: torch.full(tuple(shape), next(drawn)))
    model = weight()
    done = run(model, Local(objective=slope), gaussian, [0, 1], [], [0, 1, 2])
    assert model[1].weight.item() == pytest.approx(-0.15)
    assert done.steps == 3
    assert math.isnan(done.loss), "the mean loss is private"


def test_each_step_asks_for_noise_of_its_own() -> None:
    asked: list[Sequence[int]] = []

    def normal(shape: Sequence[int]) -> Tensor:
        asked.append(shape)
        return torch.zeros(tuple(shape))

    run(weight(), Local(objective=slope), Gaussian(1.0, 1.0, normal), [0], [], [1], [2])
    assert asked == [(1,)] * 4


def test_a_penalty_is_not_clipped_and_neither_is_what_follows_a_step() -> None:
    """C = 1/4 holds the example's gradient 3 to 1/4, over 2; the penalty's 10 w at w = 1 counts whole.

    w = 1 - 1/8 - 10 = -9.125, and the correction behind the step adds 5.
    """
    model = weight()

    def add_five(net: nn.Module) -> None:
        with torch.no_grad():
            net[1].weight += 5  # type: ignore[index, operator]

    local = Local(
        objective=slope,
        penalty=lambda net: 5 * net[1].weight.square().sum(),  # type: ignore[index]
        after_step=add_five,
    )
    run(model, local, by_clip(0.25), [0])
    assert model[1].weight.item() == pytest.approx(-4.125)


def test_what_is_drawn_for_a_batch_reaches_each_example() -> None:
    """Gradients x + r with r = 1, 2 of the two examples drawn, clipped at 2: 2 of 3 + 1 and -2 of -4 + 2."""
    model = weight()

    def draw(net: nn.Module, targets: Tensor, rows: RowDraws | None) -> tuple[Tensor]:
        return (torch.arange(1.0, 1.0 + len(targets)),)

    def objective(net: nn.Module, x: Tensor, y: Tensor, at: Tensor, r: Tensor) -> Tensor:
        return (net(x).flatten() + r * net[1].weight.sum()).mean()  # type: ignore[index, union-attr]

    local = Local(objective=objective, draw=draw)
    run(model, local, by_clip(2.0), [0, 2])
    assert model[1].weight.item() == pytest.approx(1 - (2 - 2) / 2)
    run(model, local, by_clip(3.0), [0, 1])
    assert model[1].weight.item() == pytest.approx(1 - (3 + 2.5) / 2)


def test_images_are_augmented_within_their_own_clip() -> None:
    """A batch is augmented image by image before it is clipped, and an empty one is nothing to augment."""
    images = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    seen: list[Tensor] = []

    def spy(net: nn.Module, x: Tensor, y: Tensor, at: Tensor) -> Tensor:
        return (net(x.flatten(1).mean(1)[:, None]) * 0).sum()

    def draw(net: nn.Module, targets: Tensor, rows: RowDraws | None) -> tuple[Tensor, ...]:
        seen.append(targets)
        return ()

    train(
        weight(),
        Samples.of(images, torch.zeros(6, dtype=torch.int64)),
        settings(augment="flip_crop"),
        Classification(2),
        torch.Generator().manual_seed(1),
        local=Local(objective=spy, draw=draw),
        gradients=Gradients(
            dp_sgd(by_clip(1.0), 2.0), [torch.tensor([1, 4]), torch.zeros(0, dtype=torch.int64)]
        ),
    )
    assert [len(targets) for targets in seen] == [2, 0]


# ---- what it costs ---------------------------------------------------------------------------------------


def test_a_run_costs_what_opacus_own_engine_says_of_the_same() -> None:
    """256 examples in batches of 32, three epochs with noise of 1.1: 24 steps at rate 1/8, by Opacus' engine itself."""
    from opacus import PrivacyEngine

    n, batch, epochs, sigma = 256, 32, 3, 1.1
    model = nn.Linear(4, 2)
    rng = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(n, 4, generator=rng), torch.arange(n) % 2)
    engine = PrivacyEngine(accountant="rdp")
    with warnings.catch_warnings(action="ignore"):
        model, optimizer, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), 0.1),
            data_loader=DataLoader(data, batch_size=batch),
            noise_multiplier=sigma,
            max_grad_norm=1.0,
        )
        for _ in range(epochs):
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        theirs = engine.get_epsilon(1e-5)
    steps = DPSGDSteps.plan(batch, epochs, n)
    assert engine.accountant.history == [(sigma, steps.rate, steps.steps)]
    ours = epsilon([Event("dp-sgd", sigma, steps.rate, steps.steps)], 1e-5)
    assert ours.rdp == pytest.approx(theirs, rel=1e-6)
    assert ours.value <= ours.rdp


@pytest.mark.parametrize(("images", "true"), [(3750, 19.05), (5000, 15.83)])
def test_the_epsilon_of_ten_that_fedssyn_claims(images: int, true: float) -> None:
    """Noise of 1.906, batches of 256, 500 epochs, delta 1e-5: epsilon 10 is claimed, and 16 to 19 is true."""
    steps = DPSGDSteps.plan(256, 500, images)
    assert steps.steps == math.ceil(500 * images / 256)
    cost = epsilon([Event("dp-sgd", 1.906, steps.rate, steps.steps)], 1e-5).value
    assert cost == pytest.approx(true, abs=0.01)
