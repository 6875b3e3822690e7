"""FedNova against numbers worked out by hand, and against FedAvg where the sites take equal steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import Tiny

from common.errors import PayloadError
from common.sites import Site
from common.specs.averaging import NORMALIZER, normalizer
from strategies.exchange.replies import Upload


def test_unequal_steps_by_hand(tmp_path: Path) -> None:
    """One example at a = 1 makes 2 steps, two at a = 3 make 4; p = 1/3, 2/3, plain SGD, so that a_k = tau_k.

    w_1 = 1 - 1/4 = 0.75, w_2 = 3 (1 - 1/16) = 2.8125; tau_eff = (2 + 2 * 4) / 3 = 10/3;
    sum p_k (w_k - 0) / a_k = 0.75/6 + 2 * 2.8125/12 = 0.59375; w = 0.59375 * 10/3.
    FedAvg would have given (0.75 + 2 * 2.8125) / 3 = 2.125.
    """
    tiny = Tiny(tmp_path, "fednova", examples=(1, 2))
    assert tiny.round(1) == pytest.approx(0.59375 * 10 / 3, rel=1e-7)


@pytest.mark.parametrize("settings", ["", "momentum=0.5", "weighting=uniform", "mu=0.5"])
def test_with_equal_steps_it_is_fedavg(tmp_path: Path, settings: str) -> None:
    nova = Tiny(tmp_path / "nova", "fednova", settings, wants=(1, 3, 7))
    other = "fedprox" if "mu" in settings else "fedavg"
    plain = Tiny(tmp_path / "plain", other, settings, wants=(1, 3, 7))
    for number in (1, 2, 3):
        assert nova.round(number) == pytest.approx(plain.round(number), rel=1e-6)


def test_normalizers_by_hand() -> None:
    """Momentum 1/2, three steps: 1 + 1.5 + 1.75; a pull of 1/4: 1 + 3/4 + 9/16; both: v = 1, 1.25, 1.0625."""
    assert normalizer(3, 0.0, 0.0) == 3
    assert normalizer(3, 0.5, 0.0) == 4.25
    assert normalizer(3, 0.0, 0.25) == 2.3125
    assert normalizer(3, 0.5, 0.25) == 1 + 1.25 + 1.0625


@given(st.integers(1, 60), st.floats(0.01, 0.95), st.floats(0.001, 0.9))
def test_normalizers_in_the_papers_closed_forms(steps: int, rho: float, pull: float) -> None:
    momentum = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
    assert normalizer(steps, rho, 0.0) == pytest.approx(momentum, rel=1e-9)
    assert normalizer(steps, 0.0, pull) == pytest.approx((1 - (1 - pull) ** steps) / pull, rel=1e-9)


@pytest.mark.parametrize("said", [{}, {NORMALIZER: 1e-20}, {NORMALIZER: 2.1}])
def test_a_site_cannot_lengthen_its_update_by_its_normalizer(
    tmp_path: Path, said: dict[str, float]
) -> None:
    tiny = Tiny(tmp_path, "fednova")
    honest = Upload(Site("site-0", 0, 1), tiny.weights, 1, {NORMALIZER: 2.0})
    assert tiny.strategy.prepare(1, tiny.weights, honest) is honest
    with pytest.raises(PayloadError, match=r"normalizer is .* make it 2"):
        tiny.strategy.prepare(1, tiny.weights, replace(honest, metrics=said))
