"""FedDyn against steps worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import Tiny


def h(tiny: Tiny) -> float:
    """Return the server's h."""
    return float(tiny.strategy.state_dict()["h"]["head.weight"])


def test_two_rounds_by_hand(tmp_path: Path) -> None:
    """g = (w - a) - g_k + alpha (w - w_r), alpha = 1, eta = 1/2.

    Round 1, g_k = 0: w_k = a/2, where the gradient is 0; g_k = -w_k = -0.5, -1.5; h = -(0.5 + 1.5)/2 = -1;
    w = 1 - h = 2, the minimum of the sites' sum.
    Round 2 from 2: site 0: g = 1 + 0.5, w = 1.25, where g = 0; site 1: g = -1 + 1.5, w = 1.75, where g = 0;
    g_k = -0.5 + 0.75, -1.5 + 0.25; h = -1 + (0.75 + 0.25)/2 = -0.5; w = 1.5 + 0.5 = 2.
    """
    tiny = Tiny(tmp_path, "feddyn", "alpha=1.0")
    assert (tiny.round(1), h(tiny)) == (2.0, -1.0)
    assert (tiny.round(2), h(tiny)) == (2.0, -0.5)
    assert [float(tiny.remembered(i)) for i in (0, 1)] == [0.25, -1.25]


def test_h_is_the_mean_of_the_sites_own_terms_through_absence_loss_and_restart(
    tmp_path: Path,
) -> None:
    """Both gather -alpha (w_k - w_r): h = mean g_k, with K in the divisor and sites that never took part at 0."""
    tiny = Tiny(tmp_path, "feddyn", "alpha=0.5", wants=(1, 3, 8))
    for number in range(1, 8):
        absent = [1] if number in (3, 4, 5) else []
        tiny.round(number, absent=absent, lost={2: [0], 5: [2]}.get(number, []))
        if number == 4:
            tiny.restart()
        each = sum(float(tiny.remembered(i)) for i in range(3) if f"site-{i}" in tiny.taken)
        assert h(tiny) == pytest.approx(each / 3, rel=1e-5, abs=1e-6), number


def test_weighted_by_counts_h_is_the_weighted_mean_of_the_sites_own_terms(tmp_path: Path) -> None:
    counts = (1, 2, 5)
    settings = "alpha=0.5 weighting=counts"
    tiny = Tiny(tmp_path, "feddyn", settings, wants=(1, 3, 8), examples=counts)
    for number in range(1, 8):
        absent = [1] if number in (3, 4) else []
        tiny.round(number, absent=absent, lost={2: [0], 5: [2]}.get(number, []))
        own = [float(tiny.remembered(i)) if f"site-{i}" in tiny.taken else 0.0 for i in range(3)]
        each = sum(n * g for n, g in zip(counts, own, strict=True))
        assert h(tiny) == pytest.approx(each / 8, rel=1e-5, abs=1e-6), number


def test_without_alpha_it_is_uniform_fedavg_to_the_bit_and_keeps_nothing(tmp_path: Path) -> None:
    dyn = Tiny(tmp_path / "dyn", "feddyn", "alpha=0.0", wants=(1, 3, 7), examples=(1, 2, 3))
    plain = Tiny(
        tmp_path / "plain", "fedavg", "weighting=uniform", wants=(1, 3, 7), examples=(1, 2, 3)
    )
    for number in (1, 2, 3):
        assert dyn.round(number) == plain.round(number)
    assert not list((tmp_path / "dyn").rglob("*.safetensors"))
