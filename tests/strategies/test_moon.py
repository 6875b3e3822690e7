"""MOON: the contrast by hand, and FedAvg where it counts nothing."""

from __future__ import annotations

import math

import pytest
import torch
from federation import numbers, run
from small import Small

from client_app.moon import contrastive
from common.storage import tensor_file


def test_the_contrast_by_hand() -> None:
    """tau = 1/2. Row 0: sim 1 to the global one and 0 to the earlier one: log(1 + e^-2).

    Row 1: the other way round: log(1 + e^2). A second earlier one at -1 adds e^-4 and e^0 to the sums.
    """
    z = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    positive = torch.tensor([[1.0, 0.0], [5.0, 0.0]])
    earlier = torch.tensor([[0.0, 3.0], [0.0, 1.0]])
    each = [math.log(1 + math.exp(-2)), math.log(1 + math.exp(2))]
    assert float(contrastive(z, positive, [earlier], 0.5)) == pytest.approx(sum(each) / 2, rel=1e-6)
    other = torch.tensor([[-1.0, 0.0], [0.0, -1.0]])
    each = [math.log(1 + math.exp(-2) + math.exp(-4)), math.log(1 + math.exp(2) + math.exp(-2))]
    found = float(contrastive(z, positive, [earlier, other], 0.5))
    assert found == pytest.approx(sum(each) / 2, rel=1e-6)


def test_the_contrast_changes_rounds_from_the_second_on(small: Small) -> None:
    """In the first round the site's last model is the global one, and the contrast a constant."""
    losses = [
        [n["test"]["loss"] for n in numbers(run(small(method=method, rounds=2, set=given)))]
        for method, given in (("moon", "moon.mu=5.0"), ("fedavg", ""))
    ]
    assert losses[0][:2] == losses[1][:2]
    assert losses[0][2] != losses[1][2]


@pytest.mark.parametrize("pool", [1, 2])
def test_a_site_keeps_its_last_models(small: Small, pool: int) -> None:
    record = run(small(method="moon", rounds=3, set=f"moon.pool={pool}"))
    before, after = (
        tensor_file.load(min((record.directory / "state").rglob(f"00000{number}.safetensors")))[0]
        for number in (2, 3)
    )
    assert {name.partition("/")[0] for name in after} == {str(i) for i in range(pool)}
    newest = {name: tensor for name, tensor in before.items() if name.startswith("0/")}
    assert not all(torch.equal(after[name], tensor) for name, tensor in newest.items())
    if pool == 2:
        assert all(torch.equal(after[f"1{name[1:]}"], tensor) for name, tensor in newest.items())
