"""Large tensors in pieces: the same values, in the same memory."""

from __future__ import annotations

import torch

from common.learning.pieces import pieces

LARGE = 3 * 2**18 + 7


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
    assert sizes == [2**18, 2**18, 2**18, 7]
    assert torch.equal(total, torch.zeros(LARGE, dtype=torch.float64).add_(added, alpha=3))


def test_pieces_of_tensors_that_lie_otherwise_belong_together() -> None:
    one = torch.rand(2**10, 2**9)
    for left, right in pieces(one, one.T.contiguous().T):
        assert torch.equal(left, right)
