"""FedProx against steps worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import Tiny


def test_two_rounds_by_hand(tmp_path: Path) -> None:
    """g = (w - a) + mu (w - w_r), mu = 1, eta = 1/2.

    Round 1: w_k = a/2, and there g = -a/2 + a/2 = 0; the mean of 1/2 and 3/2 is 1.
    Round 2: as round 1 in coordinates around 1: w_k = 1 + (a - 1)/2; the mean of 1 and 2 is 3/2.
    """
    tiny = Tiny(tmp_path, "fedprox", "mu=1.0")
    assert [tiny.round(1), tiny.round(2)] == [1.0, 1.5]


@pytest.mark.parametrize("settings", ["", "momentum=0.5", "weight_decay=0.25"])
def test_without_mu_it_is_fedavg_to_the_bit(tmp_path: Path, settings: str) -> None:
    prox = Tiny(tmp_path / "prox", "fedprox", f"mu=0.0 {settings}", wants=(1, 3, 7))
    plain = Tiny(tmp_path / "plain", "fedavg", settings, wants=(1, 3, 7))
    for number in (1, 2, 3):
        assert prox.round(number) == plain.round(number)
