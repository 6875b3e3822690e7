"""The models' max pool is torch's to the bit: what comes out, its gradient, and what is made of that."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from common.models.pooling import MaxPool2d

OURS, TORCHS = MaxPool2d(), nn.MaxPool2d(2)


def rows(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return values many of which are equal, as those of a ReLU and of plain background are."""
    draws = torch.Generator().manual_seed(0)
    return torch.randint(-2, 3, shape, generator=draws).to(dtype).relu().mul_(0.3)


def same(one: Tensor, other: Tensor) -> bool:
    close = torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    return close and one.stride() == other.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 32, 6, 6), (2, 5, 7, 9), (4, 1, 2, 2), (0, 3, 4, 4)])
def test_values_and_gradients_are_torchs(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    found = []
    for pool in (OURS, TORCHS):
        x = rows(shape, dtype).requires_grad_()
        out = pool(x)
        weights = torch.arange(out.numel(), dtype=dtype).view_as(out) - 3
        (slope,) = torch.autograd.grad((out**2 * weights).sum(), x, create_graph=True)
        (curve,) = torch.autograd.grad((slope**2).sum(), x)
        found.append((out, slope, curve))
    assert all(map(same, *found))


def test_what_is_no_number_stays_none() -> None:
    x = rows((2, 3, 4, 4), torch.float32)
    x[0, 0, 0, 1], x[1, 2, 3, 3], x[0, 1, 0, 0] = torch.nan, torch.inf, -torch.inf
    assert same(OURS(x), TORCHS(x))


def test_the_gradients_of_single_images_are_torchs() -> None:
    batches, rest = rows((5, 2, 3, 4, 6), torch.float32), rows((2, 3, 2, 3), torch.float32)

    def loss(x: Tensor, pool: nn.Module) -> Tensor:
        return ((pool(x) - rest) ** 3).sum()

    each = [vmap(grad(lambda x, p=pool: loss(x, p)))(batches) for pool in (OURS, TORCHS)]
    assert same(*each)
    alone = [grad(lambda x, p=pool: loss(x, p))(batches[0]) for pool in (OURS, TORCHS)]
    assert same(*alone)
    twice = [vmap(vmap(pool))(batches[:, None].expand(5, 2, 2, 3, 4, 6)) for pool in (OURS, TORCHS)]
    assert same(*twice)


def test_an_export_has_torchs_own_layer() -> None:
    x = rows((2, 3, 4, 4), torch.float32)
    (node,) = [n for n in torch.export.export(OURS, (x,)).graph.nodes if n.op == "call_function"]
    assert "max_pool2d" in str(node.target)
    assert "PythonOp" not in str(torch.jit.trace(OURS, x).graph)
