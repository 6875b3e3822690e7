"""How near a decoded update comes to the one it stands for: cosine and relative error."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from client_app.local_training import fidelity


def of(sent: list[float], reference: list[float]) -> dict[str, float]:
    return fidelity(torch.tensor(sent), torch.tensor(reference))


@pytest.mark.parametrize(
    ("sent", "reference", "cosine", "error"),
    [
        ([3.0, 4.0], [3.0, 4.0], 1.0, 0.0),
        ([-3.0, -4.0], [3.0, 4.0], -1.0, 2.0),
        ([4.0, -3.0], [3.0, 4.0], 0.0, 2**0.5),  # at a right angle and as long
        ([3.0, 0.0], [3.0, 4.0], 0.6, 0.8),  # (9 + 0) / (3 * 5), |(0, -4)| / 5
        ([30.0, 40.0], [3.0, 4.0], 1.0, 9.0),
        ([0.0, 0.0], [3.0, 4.0], 0.0, 1.0),
        ([0.0, 0.0], [0.0, 0.0], 0.0, 0.0),
        ([1.0, 0.0], [0.0, 0.0], 0.0, 1.0),
    ],
)
def test_cosine_and_error_by_hand(
    sent: list[float], reference: list[float], cosine: float, error: float
) -> None:
    assert of(sent, reference) == {
        "cosine": pytest.approx(cosine, abs=1e-12),
        "norm_error": pytest.approx(error, abs=1e-12),
    }


numbers = st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3)


@pytest.mark.extended
@given(numbers, numbers, st.floats(0.125, 8))
def test_only_the_error_sees_the_length_of_what_is_sent(
    sent: list[float], reference: list[float], factor: float
) -> None:
    """And |a - b|^2 = |a|^2 + |b|^2 - 2 |a| |b| cos, so that one figure follows from the other and the lengths."""
    a, b = (torch.tensor(v, dtype=torch.float64) for v in (sent, reference))
    if min(float(a.norm()), float(b.norm())) < 1e-3:
        return
    one, scaled = fidelity(a, b), fidelity(a * factor, b)
    assert scaled["cosine"] == pytest.approx(one["cosine"], abs=1e-9)
    assert -1 - 1e-12 <= one["cosine"] <= 1 + 1e-12
    ratio = factor * float(a.norm() / b.norm())
    square = ratio**2 + 1 - 2 * ratio * one["cosine"]
    assert scaled["norm_error"] ** 2 == pytest.approx(square, abs=1e-9 * (1 + ratio**2))


def test_small_float32_updates_do_not_vanish_in_their_squares() -> None:
    assert of([3e-30, 0.0], [3e-30, 4e-30])["cosine"] == pytest.approx(0.6, rel=1e-6)


def test_a_diverged_update_gives_no_finite_figure() -> None:
    assert not math.isfinite(of([math.nan, 0.0], [3.0, 4.0])["norm_error"])
