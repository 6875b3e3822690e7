"""The clipped sum of linear layers by products: against the gradients themselves, and what one example can change."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import rng
from torch import Tensor, nn

from common.draws.private_draws import SeededRows
from common.learning.training import dp_sgd
from common.models import build
from synth import private_release
from synth.linear_gradients import (
    OtherUseError,
    clipped_sum,
    factored_gradients,
    finely,
)
from synth.private_release import FINE_ROWS, Gaussian, Products
from synth.row_draws import Layers

CPU = torch.device("cpu")


def mechanism(sigma: float, clip: float, finer: int = 0) -> Gaussian:
    """A mechanism whose noise is none."""
    return Gaussian(sigma, clip, torch.zeros, finer)


def fine(sigma: float, clip: float) -> Gaussian:
    """The same as a step of linear layers has it."""
    return finely(mechanism(sigma, clip), nn.Linear(1, 1), 8.0)


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def total(model: nn.Module, x: Tensor) -> Tensor:
    return torch.as_tensor(model(x)).sum()


@pytest.fixture
def only_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes a gradient of an example alone."""

    def refuse(*_: Any) -> None:
        raise AssertionError("a gradient of an example alone")

    monkeypatch.setattr(private_release, "example_gradients", refuse)


# ---- it is the same sum ---------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(
    widths=st.lists(st.integers(1, 9), min_size=2, max_size=5),
    n=st.integers(1, 6),
    clip=st.sampled_from([1e-3, 0.5, 1e4]),
    left_out=st.sets(st.integers(0, 7), max_size=4),
    double=st.booleans(),
    seed=st.integers(0, 99),
)
def test_it_is_the_clipped_sum_of_the_gradients_themselves(
    widths: list[int], n: int, clip: float, left_out: set[int], double: bool, seed: int
) -> None:
    """To 1e-12 in float64 and 1e-5 in float32, without noise; some layers lack a bias, some parameters are frozen."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Flatten()]
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        layers += [nn.Linear(inputs, outputs, bias=i not in left_out), nn.Tanh()]
    model = nn.Sequential(*layers)
    for i, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(i + 4 not in left_out)
    dtype = torch.float64 if double else torch.float32
    x, y = torch.randn(n, 1, widths[0]).to(dtype), torch.randint(widths[-1], (n,))
    model.to(dtype)
    if not any(p.requires_grad for p in model.parameters()) or widths[-1] == 1:
        return
    expected = clipped_sum(model, loss, (x, y), mechanism(0.0, clip))
    scale = float(torch.cat([each.flatten() for each in expected.values()]).norm())
    found = factored_gradients(model, loss, (x, y))
    assert set(found) == set(expected)
    exact = mechanism(0.0, clip * (1 + 2.0**-30), finer=1)  # which `factors` lessens by as much
    sums = clipped_sum(model, loss, (x, y), exact)
    for name, each in expected.items():
        close = 1e-12 if double else 1e-5
        difference = float((exact.values(sums[name]) - each).abs().max())
        assert difference <= close * max(scale, 1e-30)


@pytest.mark.usefixtures("only_products")
def test_two_examples_by_hand() -> None:
    """Outputs 2 and -1 under a square: slopes 4 and -2; the first is 4 sqrt(1 + 4 + 1) long, cut to 6."""
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0]]))
        model.bias.fill_(1.0)
    x = torch.tensor([[1.0, 2.0], [-2.0, 0.0]])
    gaussian = fine(1.0, 6.0)
    sums = clipped_sum(model, lambda net, a: net(a).square().mean(), (x,), gaussian)
    cut = 6 / (4 * math.sqrt(6))  # the second is 2 sqrt(4 + 1) < 6 long
    expected = torch.tensor([[4 * cut + 4, 8 * cut]], dtype=torch.float64)
    torch.testing.assert_close(gaussian.values(sums["weight"]), expected, atol=2e-6, rtol=0)
    bias = torch.tensor([4 * cut - 2], dtype=torch.float64)
    torch.testing.assert_close(gaussian.values(sums["bias"]), bias, atol=2e-6, rtol=0)


@pytest.mark.usefixtures("only_products")
@pytest.mark.parametrize("name", ["mlp", "logistic"])
def test_a_models_private_step_is_by_products(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 300 images, as are more than 2 times 128; with noise, and to 1e-5 of what today's path gives."""
    model = build(name, (1, 8, 8), 5, generator=rng())  # type: ignore[arg-type]
    x, y = torch.randn(300, 1, 8, 8, generator=rng(1)), torch.arange(300) % 5
    numbers = sum(p.numel() for p in model.parameters())
    drawn = torch.randn(numbers, generator=rng(2), dtype=torch.float64)
    gaussian = Gaussian(1.0, 0.5, lambda shape: drawn[: math.prod(shape)])

    def step() -> Tensor:
        dp_sgd(gaussian, 300.0)(model, loss, x, y)
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    found = step()
    monkeypatch.undo()
    monkeypatch.setattr("common.learning.training.finely", lambda gaussian, *_: gaussian)
    expected = step()
    assert 0 < float((found - expected).norm()) < 1e-5 * float(expected.norm())


def test_a_frozen_body_and_a_linear_head_are_by_products() -> None:
    model = build("convnet", (1, 8, 8), 5, generator=rng(), depth=2, width=4)
    assert finely(mechanism(1.0, 1.0), model, 8.0).finer == 0
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("head."))
    gaussian = finely(mechanism(1.0, 1.0), model, 8.0)
    x, y = torch.randn(6, 1, 8, 8, generator=rng(1)), torch.arange(6) % 5
    assert set(factored_gradients(model, loss, (x, y))) == {"head.weight", "head.bias"}
    sums, plain = (clipped_sum(model, loss, (x, y), g) for g in (gaussian, mechanism(1.0, 1.0)))
    for name, each in sums.items():
        expected = mechanism(1.0, 1.0).values(plain[name])
        torch.testing.assert_close(gaussian.values(each), expected, atol=2e-6, rtol=0)


# ---- what one example can change ------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [1e-2, 1.0, 1e4])
@pytest.mark.parametrize("clip", [1e-6, 0.37, 1e6])
def test_no_example_contributes_more_than_the_clip(sigma: float, clip: float) -> None:
    """In whole numbers, without a rounding, over all layers; of every magnitude that float32 has."""
    gaussian = fine(sigma, clip)
    most = (Fraction(clip) / Fraction(gaussian.step)) ** 2
    longest = Fraction(0)
    for at, magnitude in enumerate([1e-45, 1e-38, 1e-20, 1e-3, 1.0, 1e6, 1e15, 1e30, 3e38]):
        b = torch.randn(2, 1, 5, generator=rng(at)) * magnitude ** (0.5 if at % 2 else 1)
        a = torch.randn(2, 1, 7, generator=rng(50 + at)).abs() * magnitude
        pairs = [Products(b[i], a[i]) for i in range(2)]
        factors = gaussian.factors([*(pair.lengths() for pair in pairs), b[0]])
        parts = [pair.summed(factors, gaussian) for pair in pairs]
        parts.append(gaussian.steps(b[0], factors))
        whole = [int(number) for part in parts for number in part.flatten()]
        square = Fraction(sum(number**2 for number in whole))
        assert square <= most, magnitude
        longest = max(longest, square)
    assert longest > Fraction(0.99) * most or sigma > 1, "some are cut"


@pytest.mark.parametrize("sigma", [1e-2, 1.0, 1e4])
def test_sums_are_those_of_the_examples_exactly_in_any_order(sigma: float) -> None:
    """128 rows at a time of the largest numbers there can be: against whole numbers of Python."""
    gaussian = fine(sigma, 0.7)
    b, a = torch.randn(FINE_ROWS, 3, generator=rng(1)), torch.randn(FINE_ROWS, 2, generator=rng(2))
    b[:, 0], b[:, 1:], a[:, 1:] = 1e3, 0, a[:, 1:] * 1e-3  # nearly all of C in one number
    pairs = Products(b, a.abs())
    factors = gaussian.factors([pairs.lengths()])
    assert not torch.equal(factors[:64].float().sum() * 2, factors.float().sum()), "and unlike"
    together = pairs.summed(factors, gaussian)
    singles = [
        Products(b[i : i + 1], a[i : i + 1].abs()).summed(factors[i : i + 1], gaussian)
        for i in range(FINE_ROWS)
    ]
    for at in np.ndindex(3, 2):
        assert int(together[at]) == sum(int(single[at]) for single in singles)
    for seed in range(3):
        order = torch.randperm(FINE_ROWS, generator=rng(seed))
        again = Products(b[order], a[order].abs()).summed(factors[order], gaussian)
        assert torch.equal(again, together)
    assert float(together.abs().max()) > 0.9 * FINE_ROWS * 0.7 / gaussian.step
    assert float(together.abs().max()) <= 2.0**53


# ---- what leaves ----------------------------------------------------------------------------------------


def test_what_leaves_is_the_exact_sum_with_noise_rounded_to_the_grid() -> None:
    """In fractions: the sum in steps, the noise to the nearest step, and both to the nearest of the grid."""
    drawn = torch.randn(500, dtype=torch.float64, generator=rng(3)) * 3
    gaussian = finely(Gaussian(2.0, 0.3, lambda shape: drawn), nn.Linear(1, 1), 8.0)
    sums = torch.randint(-(2**61), 2**61, (500,), generator=rng(4))
    found = gaussian.released(sums)
    grid, step = Fraction(gaussian.grid), Fraction(gaussian.step)
    assert grid / step == 2**gaussian.finer > 2**20
    for total, noise, left in zip(sums.tolist(), drawn.tolist(), found.tolist(), strict=True):
        exact = total * step + Fraction(noise * gaussian.deviation) * step
        assert Fraction(left) % grid == 0
        assert abs(Fraction(left) - exact) <= (grid + step) / 2


@pytest.mark.parametrize("sigma", [1e-9, 1e-6, 1e-3, 0.1, 1.0, 30.0, 1e4, 1e9])
@pytest.mark.parametrize("clip", [1e-6, 0.37, 1.0, 1e6])
def test_sums_and_noise_have_room_in_64_bits(sigma: float, clip: float) -> None:
    """2^16 contributions and noise of 12 deviations; and 128 contributions in float64."""
    gaussian = fine(sigma, clip)
    assert gaussian.grid == mechanism(sigma, clip).grid
    if gaussian.finer:
        assert FINE_ROWS * clip / gaussian.step <= 2**53
        assert 2**16 * clip / gaussian.step + 12.5 * gaussian.deviation < 2**63
    assert bool(gaussian.finer) == (sigma > 1e-7)


def test_steps_are_finer_where_that_is_of_use_alone() -> None:
    plain, mlp = mechanism(1.0, 1.0), nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    assert finely(plain, mlp, 2.0**15).finer == 21
    assert finely(plain, mlp, 2.0**15 + 1) is plain, "sums of so many might not fit"
    assert finely(mechanism(0.0, 1.0), mlp, 8.0).finer == 0
    others: list[nn.Module] = [
        nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)),
        nn.Sequential(nn.Linear(2, 3), nn.Bilinear(2, 2, 1)),
        nn.Linear(2, 3).requires_grad_(False),
    ]
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    for model in (*others, tied):
        assert finely(plain, model, 8.0) is plain


# ---- where layers do more than products ------------------------------------------------------------------


class Twice(nn.Module):
    """A layer that is used twice, or on rows of a sequence, or whose weight is read as well."""

    def __init__(self, how: Callable[[nn.Linear, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(3, 3), how

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self.layer, F.dropout(x, 0.5, self.training))


OTHERS: dict[str, Callable[[nn.Linear, Tensor], Tensor]] = {
    "twice": lambda layer, x: layer(layer(x)),
    "rows": lambda layer, x: layer(x.repeat(2, 1)).sum(0, keepdim=True),
    "a sequence": lambda layer, x: layer(x[:, None].repeat(1, 2, 1)).mean(1),
    "a vector": lambda layer, x: layer(x[0])[None],
    "its weight": lambda layer, x: layer(x) + layer.weight.sum(),
    "its weight alone": lambda layer, x: x @ layer.weight,
    "a product of its own": lambda layer, x: F.linear(x, layer.weight),
    "of its weight": lambda layer, x: F.linear(layer.weight, layer.weight)[:1] + x,
    "beside another": lambda layer, x: F.linear(x, torch.eye(3), layer.bias),
}


@pytest.mark.parametrize("how", OTHERS)
def test_another_use_of_a_layer_goes_the_old_way(how: str) -> None:
    """With each example's own draws as they were, to the bit."""
    torch.manual_seed(0)
    model, x = Twice(OTHERS[how]), torch.randn(4, 3)
    y = torch.arange(4) % 3
    gaussian = finely(mechanism(1.0, 0.1), model, 8.0)
    assert gaussian.finer

    def summed(gaussian: Gaussian) -> dict[str, Tensor]:
        rows, layers = SeededRows(1, np.arange(4, dtype=np.uint64), CPU), Layers()
        drawing = lambda at: layers.drawing(rows.part(at), CPU)  # noqa: E731
        return clipped_sum(model, loss, (x, y), gaussian, drawing=drawing)

    found, expected = summed(gaussian), summed(mechanism(1.0, 0.1))
    for name, each in expected.items():
        old = mechanism(1.0, 0.1).values(each)
        assert float((gaussian.values(found[name]) - old).abs().max()) < 1e-6
    assert max(float(each.abs().max()) for each in expected.values()) > 1e4
    with pytest.raises(OtherUseError):
        factored_gradients(model.eval(), loss, (x, y))


def test_layers_draw_for_each_example_as_they_did() -> None:
    """Dropout between linear layers: the same masks, and an example's alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 5), nn.Dropout(0.3), nn.Linear(5, 3))
    x, y = torch.randn(9, 6), torch.arange(9) % 3

    def summed(gaussian: Gaussian, *at: int) -> dict[str, Tensor]:
        drawn, layers = SeededRows(1, np.array(at, np.uint64), CPU), Layers()
        drawing = lambda rows: layers.drawing(drawn.part(rows), CPU)  # noqa: E731
        sums = clipped_sum(model, loss, (x[list(at)], y[list(at)]), gaussian, drawing=drawing)
        return {name: gaussian.values(each) for name, each in sums.items()}

    gaussian = fine(1.0, 0.4)
    for name, each in summed(mechanism(1.0, 0.4), *range(9)).items():
        torch.testing.assert_close(summed(gaussian, *range(9))[name], each, atol=3e-6, rtol=0)
    whole, less, alone = (summed(gaussian, *at) for at in ((0, 1, 2, 3), (0, 1, 3), (2,)))
    for name, each in whole.items():
        torch.testing.assert_close(each - less[name], alone[name], atol=1e-6, rtol=0)


def test_a_layer_that_takes_no_part_gives_nothing() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 2), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.used(x))

    gaussian = fine(1.0, 1.0)
    sums = clipped_sum(Idle(), total, (torch.ones(2, 3),), gaussian)
    assert not sums["unused.weight"].any()
    assert not sums["unused.bias"].any()
    assert sums["used.weight"].all()


def test_what_writes_over_a_layers_inputs_later_changes_nothing() -> None:
    class Over(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            inputs = x * 1.0
            outputs = self.layer(inputs)
            inputs.zero_()
            return torch.as_tensor(outputs)

    found = factored_gradients(Over(), total, (torch.full((2, 3), 5.0),))
    pairs = found["layer.weight"]
    assert isinstance(pairs, Products)
    assert pairs.inputs.tolist() == [[5.0] * 3] * 2
