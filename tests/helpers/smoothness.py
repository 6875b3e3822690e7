"""Networks without kinks, for what is compared over several steps of training."""

from __future__ import annotations

import pytest
from torch import Tensor, nn
from torch.nn import functional as F


@pytest.fixture
def smooth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ReLU smooth.

    Two ways to the same gradient round apart by 1e-7. Where a ReLU's input is as near to zero as that, they take
    different sides of it, as they did on a processor without AVX-512, in one of 36 steps: a jump of 1e-3.
    """

    def forward(self: nn.ReLU, x: Tensor) -> Tensor:
        return F.softplus(x, beta=4.0)

    monkeypatch.setattr(nn.ReLU, "forward", forward)
