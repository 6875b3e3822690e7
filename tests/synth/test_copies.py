"""The distance from an image to the nearest real one, by hand and over pieces."""

from __future__ import annotations

import pytest
import torch

from synth import copies
from synth.copies import nearest_distances


def test_the_distance_is_the_root_of_the_mean_square_to_the_nearest() -> None:
    real = torch.stack([torch.zeros(1, 2, 2), torch.ones(1, 2, 2)])
    asked = torch.tensor([[0.0, 0, 0, 0.4], [1, 1, 1, 1]]).view(2, 1, 2, 2)
    found = nearest_distances(asked, lambda at: real[at], 2)
    assert found.tolist() == pytest.approx([0.2, 0.0])


def test_pieces_give_what_one_piece_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(1)
    real, asked = torch.rand(23, 3, 4, 4, generator=rng), torch.rand(5, 3, 4, 4, generator=rng)
    asked[3] = real[22]
    whole = nearest_distances(asked, lambda at: real[at], 23)
    monkeypatch.setattr(copies, "_VALUES", 4 * 48)
    assert torch.equal(nearest_distances(asked, lambda at: real[at], 23), whole)
    assert whole[3] == 0
    assert (whole[:3] > 0.1).all()


def test_of_no_real_image_nothing_is_a_copy() -> None:
    assert (
        nearest_distances(torch.zeros(2, 1, 2, 2), lambda at: at, 0).tolist() == [float("inf")] * 2
    )
