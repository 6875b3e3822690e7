"""FedAF's terms beside closed forms, a sorted distance, sums by hand and finite differences."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.models import build
from synth.aggregation_free import (
    directions,
    knowledge_gap,
    mean_rows,
    mixed_weights,
    softened,
    towards_others,
)
from synth.distribution_matching import Matching, Shown, distil


def _draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_weights_are_mixed_as_the_paper_mixes_them() -> None:
    out = torch.empty(3)
    mixed_weights(0.9, lambda: torch.tensor([10.0, 0.0, -10.0]))(torch.ones(3), _draws(), out)
    torch.testing.assert_close(out, torch.tensor([1.9, 0.9, -0.1]))


def test_along_the_axes_the_sliced_distance_is_the_mean_square() -> None:
    logits = torch.randn(5, 4, generator=_draws(), dtype=torch.float64)
    others = torch.randn(4, 4, generator=_draws(1), dtype=torch.float64)
    labels, averages = torch.tensor([0, 0, 3, 3, 3]), torch.zeros(2, 5, dtype=torch.float64)
    averages[0, :2], averages[1, 2:] = 1 / 2, 1 / 3
    apart = towards_others(logits, labels, others, torch.eye(4, dtype=torch.float64), averages)
    square = (logits - others[labels]).square().sum(1) / 4
    torch.testing.assert_close(apart, square[:2].mean() + square[2:].mean())


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(2, 5))
def test_it_is_the_sorted_distance_to_as_many_copies_of_the_point(
    seed: int, images: int, classes: int
) -> None:
    draws = _draws(seed)
    logits = torch.randn(images, classes, generator=draws)
    others = torch.randn(classes, classes, generator=draws)
    along = directions(7, classes, draws)
    torch.testing.assert_close(along.norm(dim=1), torch.ones(7))
    mine, theirs = (
        (logits @ along.T).sort(0).values,
        (others[1].repeat(images, 1) @ along.T).sort(0).values,
    )
    sorted_distance = (mine - theirs).square().mean(0).mean()
    got = towards_others(
        logits,
        torch.ones(images, dtype=torch.long),
        others,
        along,
        torch.full((1, images), 1 / images),
    )
    torch.testing.assert_close(got, sorted_distance, rtol=1e-4, atol=1e-6)


def test_a_class_of_which_nobody_knows_counts_nothing_and_has_no_gradient() -> None:
    logits = torch.randn(2, 2, generator=_draws()).requires_grad_()
    others = torch.tensor([[math.nan, math.nan], [0.0, 0.0]])
    averages = torch.eye(2)
    loss = towards_others(logits, torch.tensor([0, 1]), others, torch.eye(2), averages)
    (slope,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(loss, logits[1].square().mean())
    assert slope[0].tolist() == [0, 0]
    assert slope[1].abs().sum() > 0


def test_class_means_are_of_the_classes_that_there_are() -> None:
    rows = torch.tensor([[1.0, 0.0], [3.0, 2.0], [5.0, 5.0]])
    there, means = mean_rows(rows, torch.tensor([2, 2, 0]), 4)
    assert there.tolist() == [0, 2]
    torch.testing.assert_close(means, torch.tensor([[5.0, 5.0], [2.0, 1.0]]))


def test_the_gap_by_hand() -> None:
    # softened outputs are (3/4, 1/4) and (1/2, 1/2): of class 0 their mean is (5/8, 3/8)
    logits = torch.tensor([[2 * math.log(3.0), 0.0], [0.0, 0.0]])
    shares = torch.tensor([[0.5, 0.5], [math.nan, math.nan]])
    torch.testing.assert_close(softened(logits, 2.0)[0], torch.tensor([0.75, 0.25]))
    there = 0.5 * math.log(0.5 / 0.625) + 0.5 * math.log(0.5 / 0.375)
    back = 0.625 * math.log(0.625 / 0.5) + 0.375 * math.log(0.375 / 0.5)
    gap = knowledge_gap(logits, torch.tensor([0, 0]), shares, 2.0)
    assert float(gap) == pytest.approx(0.5 * (there + back), rel=1e-5)
    assert float(knowledge_gap(logits, torch.tensor([1, 1]), shares, 2.0)) == 0


def test_its_gradient_is_the_finite_difference() -> None:
    logits = torch.randn(4, 3, generator=_draws(), dtype=torch.float64).requires_grad_()
    shares = torch.softmax(torch.randn(3, 3, generator=_draws(1), dtype=torch.float64), 1)
    labels = torch.tensor([0, 0, 2, 2])
    assert torch.autograd.gradcheck(lambda z: knowledge_gap(z, labels, shares, 2.0), logits)


def test_one_step_follows_both_terms_at_the_mixed_weights() -> None:
    model = build(
        name="convnet", shape=(1, 8, 8), classes=3, depth=1, width=4, generator=_draws()
    ).double()
    fresh = torch.randn(
        sum(p.numel() for p in model.parameters()), generator=_draws(1), dtype=torch.float64
    )
    real = torch.randn(6, 1, 8, 8, generator=_draws(2), dtype=torch.float64)
    labels, others = torch.tensor([0, 0, 0, 2, 2, 2]), torch.randn(3, 3, dtype=torch.float64)
    start = torch.randn(4, 1, 8, 8, generator=_draws(3), dtype=torch.float64)
    own = torch.tensor([0, 0, 2, 2])
    axes = torch.eye(3, dtype=torch.float64)
    how = Matching(
        iterations=1,
        image_lr=0.5,
        image_momentum=0.0,
        rho=0.0,
        weights=mixed_weights(0.75, lambda: fresh),
        logits=False,
    )

    def extra(shown: Shown) -> torch.Tensor:
        apart = towards_others(shown.logits, shown.labels, others, axes, shown.averages)
        assert shown.embeddings.shape == (4, 4 * 4 * 4)
        return 0.3 * apart + 0.5 * shown.images.square().sum()

    got = distil(model, lambda at: real[at], labels, start, own, how, 3, _draws(4), extra=extra)

    at, images = 0, start.clone().requires_grad_()
    for parameter in model.parameters():
        mixed = 0.25 * fresh[at : at + parameter.numel()] + 0.75 * parameter.data.flatten()
        parameter.data = mixed.view_as(parameter)
        at += parameter.numel()
    h, z = model.embed(images), model.classify(model.embed(images))
    loss = torch.zeros((), dtype=torch.float64)
    for c, mine in ((0, slice(0, 2)), (2, slice(2, 4))):
        loss = loss + (model.embed(real[labels == c]).mean(0) - h[mine].mean(0)).square().sum()
        loss = loss + 0.3 * (z[mine] - others[c]).square().sum(1).mean() / 3
    loss = loss + 0.5 * images.square().sum()
    (slope,) = torch.autograd.grad(loss, images)
    torch.testing.assert_close(got.images, start - 0.5 * slope)
    assert float(got.losses[0]) == pytest.approx(loss.item())
