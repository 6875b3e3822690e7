"""The two tasks: figures worked out by hand, and what the rest of the house asks of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import grad, vmap

from common.data.published.catalogue import describe
from common.learning.task import PAD, UNK, Classification, NextToken, task_of
from common.learning.training import evaluate
from common.samples.dataset import DatasetInfo, Split
from common.samples.inputs import Samples

V = 4


def certain(tokens: list[list[int]], size: float = 9.0) -> Tensor:
    """Return outputs [n, T, V] whose largest logit, ``size``, is at the given tokens and all others 0."""
    return torch.nn.functional.one_hot(torch.tensor(tokens), V).float() * size


def test_accuracy_of_next_tokens_by_hand() -> None:
    """Of seven places that count, three are right; a rightly foretold UNK or PAD is wrong, and PAD never counts."""
    targets = torch.tensor([[2, 3, UNK, PAD], [2, UNK, 3, 3], [PAD, PAD, PAD, PAD]])
    foretold = [[2, 2, UNK, PAD], [2, 3, 3, PAD], [PAD, 2, UNK, 3]]
    tally = NextToken(V).tally()
    tally.add(certain(foretold), targets)
    found = tally.result()
    assert found.examples == 7
    assert found.accuracy == 3 / 7
    assert found.per_class == ()


def test_loss_of_next_tokens_by_hand() -> None:
    """With logits (9, 0, 0, 0) a right place costs ln(1 + 3 e^-9), a wrong one 9 more; those of PAD cost nothing."""
    targets = torch.tensor([[2, 3, UNK, PAD]])
    outputs = certain([[2, 2, UNK, 3]])
    right = math.log(1 + 3 * math.exp(-9))
    expected = (right + (9 + right) + right) / 3
    assert float(NextToken(V).loss(outputs, targets)) == pytest.approx(expected, rel=1e-5)
    tally = NextToken(V).tally()
    tally.add(outputs, targets)
    assert tally.result().loss == pytest.approx(expected, rel=1e-5)


def test_weights_of_texts_by_hand() -> None:
    """At equal logits every place costs ln V: weights (2, 0) count the first text's two places twice, of five."""
    targets = torch.tensor([[2, 3, PAD], [2, 3, 2]])
    weights = torch.tensor([2.0, 0.0])
    found = NextToken(V).loss(torch.zeros(2, 3, V), targets, weights)
    assert float(found) == pytest.approx(2 * 2 * math.log(V) / 5, rel=1e-6)


def test_texts_without_a_target_cost_nothing_and_move_nothing() -> None:
    outputs = torch.randn(2, 3, V, requires_grad=True)
    loss = NextToken(V).loss(outputs, torch.full((2, 3), PAD))
    loss.backward()
    assert loss.item() == 0
    assert not outputs.grad.any()


@pytest.mark.parametrize("task", [Classification(V), NextToken(V)])
def test_an_evaluation_of_nothing_is_refused(task: Classification | NextToken) -> None:
    with pytest.raises(ValueError, match="at least one"):
        task.tally().result()


def test_an_evaluation_of_padding_alone_is_refused() -> None:
    tally = NextToken(V).tally()
    tally.add(torch.zeros(1, 2, V), torch.full((1, 2), PAD))
    with pytest.raises(ValueError, match="at least one example that has a target"):
        tally.result()


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 7), st.integers(0, 2**31))
def test_an_evaluation_of_texts_depends_on_no_batch_and_no_padding(
    n: int, length: int, batch: int, seed: int
) -> None:
    """Against one plain loop over the places; then again with a place of padding behind each text."""
    draw = torch.Generator().manual_seed(seed)
    outputs = torch.randn(n, length, V, generator=draw)
    targets = torch.randint(V, (n, length), generator=draw)
    targets[0, 0] = 2  # so that one counts
    places = [
        (outputs[i, t], int(targets[i, t]))
        for i in range(n)
        for t in range(length)
        if targets[i, t] != PAD
    ]
    right = sum(int(z.argmax()) == y and y != UNK for z, y in places)
    loss = sum(float(z.logsumexp(0) - z[y]) for z, y in places) / len(places)
    model = nn.Identity()
    found = evaluate(model, Samples.of(outputs, targets), NextToken(V), batch)
    assert found.examples == len(places)
    assert found.accuracy == right / len(places)
    assert found.loss == pytest.approx(loss, rel=1e-5)
    more = torch.cat([outputs, torch.randn(n, 1, V, generator=draw)], 1)
    padded = torch.cat([targets, torch.full((n, 1), PAD)], 1)
    again = evaluate(model, Samples.of(more, padded), NextToken(V), batch)
    assert (again.examples, again.accuracy) == (found.examples, found.accuracy)
    assert again.loss == pytest.approx(found.loss, rel=1e-6)
    trained = NextToken(V).loss(outputs, targets)
    assert float(trained) == pytest.approx(loss, rel=1e-5)


def test_the_loss_of_texts_has_two_derivatives_and_runs_over_many_at_once() -> None:
    targets = torch.tensor([[2, 3, PAD], [UNK, PAD, 2]])
    outputs = torch.randn(3, 2, 3, V, dtype=torch.float64, requires_grad=True)
    loss = NextToken(V).loss
    assert torch.autograd.gradgradcheck(lambda z: loss(z, targets), (outputs[0],))
    slopes = vmap(grad(loss), in_dims=(0, None))(outputs.detach(), targets)
    for at_once, alone in zip(slopes, outputs.detach(), strict=True):
        torch.testing.assert_close(at_once, grad(loss)(alone, targets))


def test_what_counts_and_what_is_told_by_class() -> None:
    labels, texts = torch.tensor([1, 0, 1]), torch.tensor([[PAD, UNK, 3], [2, PAD, PAD]])
    assert Classification(3).counted(labels).tolist() == [1, 0, 1]
    assert Classification(3).class_counts(labels) == [1, 2, 0]
    assert NextToken(V).counted(texts).tolist() == [UNK, 3, 2]
    assert NextToken(V).class_counts(texts) is None
    assert Classification.by_class
    assert not NextToken.by_class


def test_cuts_go_by_label_or_by_the_texts_owner() -> None:
    images = Split(np.zeros((3, 1, 2, 2)), np.array([2, 0, 1]), np.array([0, 0, 1]))
    assert Classification(3).strata(images).tolist() == [2, 0, 1]
    texts = np.zeros((3, 4), dtype=np.int64)
    assert NextToken(V).strata(Split(texts, texts, np.array([0, 0, 1]))).tolist() == [0, 0, 1]
    assert NextToken(V).strata(Split(texts, texts)).tolist() == [0, 0, 0]


def test_the_data_set_says_what_is_learned() -> None:
    text = DatasetInfo("tiny", (4,), ("0", "1", "2"), (), (), 1.0, "next-token")
    assert isinstance(task_of(text), NextToken)
    assert task_of(text).classes == 3
    assert (text.target_shape, text.has_images, text.unit) == ((4,), False, "sequences")
    digits = task_of(describe("digits", None))
    assert isinstance(digits, Classification)
    assert digits.classes == 10
    known = describe("digits", None)
    assert (known.target_shape, known.has_images, known.unit) == ((), True, "images")
