"""Two factors of a matrix: against the singular value decomposition, in float64, and by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from synth.sparse_updates import factors, rank_of


def drawn(rows: int, columns: int, seed: int = 0) -> Tensor:
    numbers = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=numbers, dtype=torch.float64)


@pytest.mark.parametrize(
    ("shape", "rank", "kept"),
    [
        ((10,), 4, 0),
        ((), 4, 0),
        ((200, 784), 4, 4),
        ((32, 3, 3, 3), 4, 4),  # 4 x (32 + 27) of 864
        ((10, 10), 5, 0),  # 5 x 20 of 100: as large as it
        ((10, 10), 4, 4),
        ((2, 1000), 4, 0),  # 2 x 1002 of 2000
        ((0, 5), 2, 0),
    ],
)
def test_factors_are_sent_where_they_are_smaller(
    shape: tuple[int, ...], rank: int, kept: int
) -> None:
    assert rank_of(shape, rank) == kept


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 5))
def test_with_all_columns_the_product_is_the_matrix(rows: int, columns: int, seed: int) -> None:
    matrix, r = drawn(rows, columns, seed), min(rows, columns)
    left, right = factors(matrix, drawn(columns, r, seed + 100))
    assert torch.allclose(left @ right.T, matrix, atol=1e-10)


def test_a_matrix_of_rank_two_is_found_in_one_step_and_one_of_zeros_gives_zeros() -> None:
    matrix = drawn(20, 2, 1) @ drawn(2, 15, 2)
    left, right = factors(matrix, drawn(15, 2, 3))
    assert torch.allclose(left @ right.T, matrix, atol=1e-10)
    left, right = factors(torch.zeros(4, 3), torch.ones(3, 2))
    assert not (left @ right.T).any()


def test_what_is_left_out_is_orthogonal_to_what_is_sent() -> None:
    matrix = drawn(20, 15)
    left, right = factors(matrix, drawn(15, 3, 1))
    assert torch.allclose(left.T @ left, torch.eye(3, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(
        left.T @ (matrix - left @ right.T), torch.zeros(3, 15).double(), atol=1e-12
    )


def test_going_on_from_the_last_q_comes_to_the_best_factors_of_that_rank() -> None:
    matrix, last = drawn(20, 15), drawn(15, 2, 1)
    singular = torch.linalg.svdvals(matrix)
    best = float(singular[2:].norm())
    errors = []
    for _ in range(200):
        left, last = factors(matrix, last)
        errors.append(float((matrix - left @ last.T).norm()))
    assert all(later <= error + 1e-9 for error, later in pairwise(errors))
    assert errors[0] > 1.01 * best
    assert errors[-1] == pytest.approx(best, rel=1e-6)


def test_one_step_of_two_by_two_by_hand() -> None:
    """M = diag(3, 1), Q = (1, 1): P = (3, 1) / sqrt(10), and M^T P = (9, 1) / sqrt(10)."""
    matrix = torch.tensor([[3.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    left, right = factors(matrix, torch.ones(2, 1, dtype=torch.float64))
    assert torch.allclose(left @ right.T, torch.tensor([[27.0, 3.0], [9.0, 1.0]]).double() / 10)
