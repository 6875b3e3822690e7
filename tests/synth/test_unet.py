"""The U-Net: its size against a count by hand, what it takes, and where its randomness comes from."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import rng
from torch import Tensor

from synth.unet import Attention, UNet, attended, sinusoids

SMALL: dict[str, Any] = {"width": 16, "multipliers": (1, 2, 2), "blocks": 1}
TINY: dict[str, Any] = {"width": 4, "multipliers": (1, 2), "blocks": 1, "attention": (1,)}


def woken(model: UNet, seed: int = 1) -> UNet:
    """Return the network with random values for the layers that start at 0, else it would only give 0."""
    generator = rng(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(0, 0.1, generator=generator)
    return model


def parameters(model: UNet) -> int:
    return sum(p.numel() for p in model.parameters())


def block(i: int, o: int, e: int) -> int:
    """Two 3x3 convolutions, two norms, the scale and shift, and a 1x1 convolution where channels change."""
    return (
        2 * i + 9 * i * o + o + 2 * e * o + 2 * o + 2 * o + 9 * o * o + o + (i != o) * (i * o + o)
    )


def attention(c: int) -> int:
    """A norm, the three projections and the one that leads out."""
    return 2 * c + 3 * (c * c + c) + c * c + c


def test_the_released_codes_network_has_14_4_million_parameters() -> None:
    """Its 31 blocks one by one, from the channels that come in, written down by hand."""
    e, w, d = 256, 64, 128
    expected = (w * e + e) + (e * e + e) + 10 * e  # the time step's two layers and the classes
    expected += 27 * w + w  # the first convolution
    expected += 3 * (block(w, w, e) + attention(w)) + block(w, w, e)  # 32x32, then down
    expected += block(w, d, e) + 2 * block(d, d, e) + 3 * attention(d) + block(d, d, e)  # 16x16
    expected += 3 * (block(d, d, e) + attention(d)) + block(d, d, e)  # 8x8
    expected += 3 * block(d, d, e)  # 4x4
    expected += 2 * block(d, d, e) + attention(d)  # the middle
    expected += 4 * block(2 * d, d, e) + block(d, d, e)  # 4x4, then up
    expected += 4 * (block(2 * d, d, e) + attention(d)) + block(d, d, e)  # 8x8
    expected += 3 * block(2 * d, d, e) + block(d + w, d, e) + 4 * attention(d) + block(d, d, e)
    expected += block(d + w, w, e) + 3 * block(2 * w, w, e) + 4 * attention(w)  # 32x32
    expected += 2 * w + 27 * w + 3  # the last norm and convolution
    assert parameters(UNet((3, 32, 32), 10, rng())) == expected == 14_419_651


def test_the_small_network_for_digits_has_a_third_of_a_million() -> None:
    assert parameters(UNet((1, 8, 8), 10, rng(), **SMALL)) == 361_873


@pytest.mark.sweep
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 16, 16), (1, 28, 28), (3, 32, 32), (2, 5, 7)])
def test_any_side_goes_in_and_comes_out(shape: tuple[int, int, int]) -> None:
    model = woken(UNet(shape, 4, rng(), **{**SMALL, "width": 8}))
    x = torch.randn(2, *shape, generator=rng(2))
    eps = model(x, torch.tensor([1, 1000]), torch.tensor([0, 3]))
    assert eps.shape == x.shape
    assert bool(eps.isfinite().all())
    assert float(eps.detach().std()) > 0.01


def test_it_starts_by_predicting_no_noise() -> None:
    model = UNet((1, 8, 8), 3, rng(), **TINY)
    eps = model(torch.randn(2, 1, 8, 8), torch.tensor([5, 50]), torch.tensor([0, 2]))
    assert not eps.any()


def test_the_time_step_and_the_class_matter_and_the_rest_of_the_batch_does_not() -> None:
    model = woken(UNet((1, 8, 8), 3, rng(), **TINY)).double()
    x = torch.randn(1, 1, 8, 8, generator=rng(4), dtype=torch.float64).expand(3, -1, -1, -1)
    t, y = torch.tensor([5, 500, 5]), torch.tensor([0, 0, 1])
    together = model(x, t, y).detach()
    assert float((together[0] - together[1]).abs().max()) > 1e-3
    assert float((together[0] - together[2]).abs().max()) > 1e-3
    alone = torch.cat([model(x[i : i + 1], t[i : i + 1], y[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-12)


@pytest.mark.extended
def test_the_weights_come_from_the_generator_alone() -> None:
    torch.manual_seed(7)
    untouched = torch.get_rng_state()
    first, again, other = (UNet((1, 8, 8), 3, rng(seed), **TINY) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), untouched)
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    assert not torch.equal(first.first.weight, other.first.weight)


def test_the_weights_start_uniform_by_their_fan_in() -> None:
    """A 3x3 convolution from 128 channels: +-1/sqrt(1152), of standard deviation 1/sqrt(3 * 1152)."""
    weight = UNet((3, 32, 32), 10, rng()).get_submodule("middle.block.conv1").weight
    assert isinstance(weight, Tensor)
    weight = weight.detach()
    assert float(weight.abs().max()) <= 1 / math.sqrt(1152)
    assert float(weight.std()) == pytest.approx(1 / math.sqrt(3 * 1152), rel=0.01)


def test_dropout_is_the_generators_and_off_without_one() -> None:
    model = woken(UNet((1, 8, 8), 3, rng(), **TINY, dropout=0.5))
    x, t, y = torch.randn(2, 1, 8, 8), torch.tensor([3, 4]), torch.tensor([0, 1])
    assert torch.equal(model(x, t, y), model(x, t, y))
    dropped = model(x, t, y, rng(5))
    assert torch.equal(dropped, model(x, t, y, rng(5)))
    assert not torch.equal(dropped, model(x, t, y, rng(6)))
    assert not torch.equal(dropped, model(x, t, y))


def test_dropout_leaves_the_mean() -> None:
    """A block's last convolution is linear, so the mean over masks is the output without them, as f is 0 but for it."""
    model = woken(UNet((1, 2, 2), 1, rng(), width=2, multipliers=(1,), blocks=1, attention=()))
    stage = model.down[0].block
    stage.dropout, n = 0.5, 20_000
    x, c = torch.randn(1, 2, 2, 2, generator=rng(1)), torch.randn(1, 8, generator=rng(2))
    drawn = stage(x.expand(n, -1, -1, -1), c.expand(n, -1), rng(3))
    bound = 5 * drawn.std(0) / math.sqrt(n)
    assert bool(((drawn.mean(0) - stage(x, c, None)[0]).abs() <= bound + 1e-6).all())


def test_attention_is_softmax_of_the_scaled_products() -> None:
    """Two heads of 64 against the explicit softmax(QK^T / sqrt(64)) V, in float64."""
    layer = Attention(128).double()
    x = torch.randn(2, 128, 3, 4, generator=rng(1), dtype=torch.float64)
    rows = F.group_norm(x, 32, layer.norm.weight, layer.norm.bias).flatten(2).mT
    q, k, v = (part.reshape(2, 12, 2, 64).transpose(1, 2) for part in layer.qkv(rows).chunk(3, 2))
    mixed = torch.softmax(q @ k.mT / 8, -1) @ v
    expected = x + layer.project(mixed.transpose(1, 2).reshape(2, 12, 128)).mT.reshape(x.shape)
    torch.testing.assert_close(layer(x), expected)


def test_attention_in_bfloat16_is_the_same_but_for_rounding() -> None:
    q, k, v = torch.randn(3, 2, 2, 12, 64, generator=rng(1))
    expected = torch.softmax(q @ k.mT / 8, -1) @ v
    found = attended(*(x.to(torch.bfloat16) for x in (q, k, v)))
    assert found.dtype == torch.bfloat16
    assert float((found - expected).norm() / expected.norm()) < 0.02


def test_sinusoids_by_hand() -> None:
    """Size 4: frequencies 1 and 1/100."""
    found = sinusoids(torch.tensor([0, 50]), 4)
    expected = [[1, 1, 0, 0], [math.cos(50), math.cos(0.5), math.sin(50), math.sin(0.5)]]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-5)


def test_channels_last_and_bfloat16_change_the_rounding_only() -> None:
    """The values dropped are the same ones, too."""
    model = woken(UNet((1, 8, 8), 3, rng(), **SMALL))
    given = (torch.randn(2, 1, 8, 8, generator=rng(1)), torch.tensor([3, 40]), torch.tensor([0, 1]))
    expected, dropped = model(*given).detach(), model(*given, rng(3)).detach()
    model = model.to(memory_format=torch.channels_last)
    # Apart by up to 3e-6 where they are near 0.
    torch.testing.assert_close(model(*given).detach(), expected, rtol=1e-4, atol=3e-5)
    torch.testing.assert_close(model(*given, rng(3)).detach(), dropped, rtol=1e-4, atol=3e-5)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(*given).float().detach()
    # 9 bits a number, rounded anew in every layer.
    assert float((rounded - expected).norm() / expected.norm()) < 0.05


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_a_network_fits_or_is_refused_with_the_depth_that_fits(
    height: int, width: int, depth: int
) -> None:
    shape, sizes = (1, height, width), {"width": 2, "multipliers": (1,) * depth, "blocks": 1}
    if 2 ** (depth - 1) > min(height, width):
        with pytest.raises(ValueError, match=f"there can be {min(height, width).bit_length()}"):
            UNet(shape, 2, rng(), attention=(), **sizes)  # type: ignore[arg-type]
        return
    model = UNet(shape, 2, rng(), attention=(0,), **sizes)  # type: ignore[arg-type]
    assert model(
        torch.ones(1, *shape), torch.ones(1, dtype=torch.int64), torch.ones(1).long()
    ).shape == (1, *shape)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"width": 3}, "even width"),
        ({"blocks": 0}, "blocks"),
        ({"multipliers": ()}, "multipliers"),
        ({"attention": (4,)}, "0 to 3"),
        ({"width": 66, "multipliers": (2,), "attention": ()}, None),
        ({"width": 130, "multipliers": (1,), "attention": (0,)}, None),
        ({"width": 194, "multipliers": (1,), "attention": (0,)}, "3 equal heads"),
    ],
)
def test_impossible_sizes_are_refused(sizes: dict[str, Any], words: str | None) -> None:
    if words is None:
        UNet((1, 8, 8), 2, rng(), **sizes)
        return
    with pytest.raises(ValueError, match=words):
        UNet((1, 8, 8), 2, rng(), **sizes)
