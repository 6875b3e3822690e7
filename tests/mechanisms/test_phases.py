"""Phases under audit: one example more moves what is released by the clip, in the old order of draws by far more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from exact_epsilon import gaussian as exact_gaussian
from torch import Tensor

from client_app.draws import Draws
from tests.mechanisms.phases import audit_phase, exact_epsilon
from tests.mechanisms.run import main

DELTA = 1e-5


class OneAfterTheOther:
    """Draws for a batch row by row, of a generator: as it was before each example had its own."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self._count, self._generator = count, generator

    def __len__(self) -> int:
        """Return the rows."""
        return self._count

    def uniform(self, *shape: int) -> Tensor:
        """Return the next numbers of the generator."""
        return torch.rand(self._count, *shape, generator=self._generator, dtype=torch.float64)

    def normal(self, *shape: int) -> Tensor:
        """Return the next numbers of the generator."""
        return torch.randn(self._count, *shape, generator=self._generator)

    def part(self, rows: slice) -> OneAfterTheOther:
        """Return the same generator's draws for fewer."""
        return OneAfterTheOther(len(range(self._count)[rows]), self._generator)


@pytest.fixture
def old_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(self: Draws, purpose: str, pool: Any = None) -> Callable[..., Any]:
        generator = torch.Generator().manual_seed(self.client.generator(purpose).initial_seed())
        return lambda step, at: OneAfterTheOther(len(at), generator)

    monkeypatch.setattr(Draws, "rows", rows)


DRAWING = ["phase-fedavg", "phase-moon", "phase-fedvae", "phase-fedgen", "phase-fedssyn"]


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:.*performance drop")
@pytest.mark.parametrize("name", DRAWING)
def test_the_old_order_shows_more_than_the_claim(name: str, old_order: None) -> None:
    found = audit_phase(name, DELTA)
    assert not found.holds
    assert found.clips["in front"] > 1.3
    assert found.exact > found.claimed


@pytest.mark.extended
def test_a_random_subset_shows_more_than_the_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of fedssyn.rho as it was drawn: the first of an order of all."""

    def drawn(self: Any, rho: float) -> Tensor:
        n = len(self._client.samples)
        order = torch.randperm(n, generator=self._client.generator("synthesis-subset", 0))
        return order[: round(rho * n)].sort().values

    monkeypatch.setattr("client_app.synthesis.Synthesis._chosen", drawn)
    assert not audit_phase("phase-fedssyn-rho", DELTA).holds


def test_the_epsilon_of_a_moved_sum_is_the_gaussians() -> None:
    for clips in (0.5, 1.0, 7.19):
        assert exact_epsilon(1.0, clips, DELTA) == pytest.approx(
            exact_gaussian(1 / clips, DELTA), rel=1e-6
        )
    assert exact_epsilon(1.0, 0.0, DELTA) == 0


@pytest.mark.extended
def test_the_command_says_what_moved_and_fails_where_it_is_too_much(
    capsys: pytest.CaptureFixture[str], old_order: None
) -> None:
    assert main(["phase-fedavg-plain"]) == 0
    assert "1.000          1.000          1.000     4.38     4.39" in capsys.readouterr().out
    assert main(["phase-fedavg"]) == 1
    assert "More is shown than is claimed." in capsys.readouterr().out
