"""Models: exact sizes, the two halves, initial weights, and what cannot be built."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from common.models import build, couples_samples
from common.models.convnet import ConvNet, HalvingPool


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        ("convnet", (3, 32, 32), 10, 320_010),
        ("convnet", (3, 32, 32), 100, 504_420),
        ("convnet", (1, 28, 28), 10, 317_706),
        ("cnn", (3, 32, 32), 10, 878_538),
        ("leafcnn", (1, 28, 28), 62, 6_603_710),
    ],
)
def test_parameter_counts_of_the_papers(name, shape, classes, count):
    assert _parameters(build(name, shape, classes)) == count


def test_digits_depth_two():
    # 1*32*9+32 and 32*32*9+32 for the convolutions, 64 a norm, 32*2*2*10+10 for the linear layer
    assert (
        _parameters(build("convnet", (1, 8, 8), 10, depth=2, width=32)) == 320 + 9248 + 128 + 1290
    )


def test_mlp_with_two_hundred_hidden_units():
    # 784*200+200 for the hidden units, 200*10+10 for the linear layer
    model = build("mlp", (1, 28, 28), 10, width=200)
    assert _parameters(model) == 157_000 + 2_010
    x = torch.randn(3, 1, 28, 28)
    assert model.embed(x).shape == (3, 200)
    weight, bias, head, offset = model.parameters()
    expected = F.linear(F.linear(x.flatten(1), weight, bias).clamp_min(0), head, offset)
    torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-6)


def test_leafcnn_keeps_the_size_of_an_image_before_each_pool():
    model = build("leafcnn", (2, 11, 6), 5)
    x = torch.randn(3, 2, 11, 6)
    first, second = model.features[0], model.features[3]
    out = F.relu(F.conv2d(x, first.weight, first.bias, padding=2))
    assert out.shape == (3, 32, 11, 6)
    out = F.relu(F.conv2d(F.max_pool2d(out, 2), second.weight, second.bias, padding=2))
    out = F.max_pool2d(out, 2).flatten(1)
    dense = model.features[7]
    out = F.relu(F.linear(out, dense.weight, dense.bias))
    torch.testing.assert_close(model.embed(x), out, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("norm", ["instance", "group", "batch", "none"])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (2, 17, 23)])
def test_forward_is_classify_of_embed(norm, shape):
    model = build("convnet", shape, 7, depth=2, width=8, norm=norm).eval()
    x = torch.randn(3, *shape)
    h = model.embed(x)
    side = (8, 8) if shape[-1] in (32, 28) else (4, 5)
    assert h.shape == (3, 8 * side[0] * side[1])
    assert model(x).shape == (3, 7)
    torch.testing.assert_close(model(x), model.classify(h), rtol=0, atol=0)


def test_cnn_embeds_into_its_hidden_units():
    model = build("cnn", (3, 32, 32), 10)
    x = torch.randn(2, 3, 32, 32)
    assert model.embed(x).shape == (2, 512)
    torch.testing.assert_close(model(x), model.classify(model.embed(x)), rtol=0, atol=0)


def test_convnet_equals_the_specification_in_float64():
    """The blocks written out with torch's own instance norm and average pooling."""
    model = build(
        "convnet", (1, 28, 28), 10, width=6, generator=torch.Generator().manual_seed(3)
    ).double()
    x = torch.randn(2, 1, 28, 28, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    weights = list(model.parameters())
    out = x
    for block in range(3):
        kernel, bias, scale, shift = weights[4 * block : 4 * block + 4]
        out = F.conv2d(out, kernel, bias, padding=1 if block else 3)
        assert out.shape[-1] == 32 >> block
        out = F.avg_pool2d(F.relu(F.instance_norm(out, weight=scale, bias=shift)), 2)
    expected = F.linear(out.flatten(1), weights[-2], weights[-1])
    torch.testing.assert_close(model(x), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [(4, 6), (5, 7), (2, 3)])
def test_halving_pool_is_average_pooling(size):
    x = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(HalvingPool()(x), F.avg_pool2d(x, 2))
    assert torch.autograd.gradcheck(HalvingPool(), (x,))


def test_initial_weights_come_from_the_generator_alone():
    before = torch.get_rng_state()
    one = build("convnet", (3, 32, 32), 10, generator=torch.Generator().manual_seed(5))
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(99)
    with ThreadPoolExecutor(4) as pool:
        others = list(
            pool.map(
                lambda _: build(
                    "convnet", (3, 32, 32), 10, generator=torch.Generator().manual_seed(5)
                ),
                range(8),
            )
        )
    for other in others:
        for name, value in one.state_dict().items():
            assert torch.equal(value, other.state_dict()[name])
    different = build("convnet", (3, 32, 32), 10, generator=torch.Generator().manual_seed(6))
    assert not torch.equal(one.head.weight, different.head.weight)


@pytest.mark.parametrize("norm", ["instance", "group", "batch", "none"])
@torch.no_grad()
def test_initial_weights_have_torchs_distribution(norm):
    torch.manual_seed(0)
    model = build("convnet", (3, 32, 32), 10, norm=norm)
    reference = ConvNet((3, 32, 32), 10, norm=norm)
    for (name, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert ours.shape == theirs.shape, name
        if theirs.numel() > 1000:
            torch.testing.assert_close(ours.std(), theirs.std(), rtol=0.03, atol=0)
            assert abs(float(ours.mean())) < 4 * float(theirs.std()) / math.sqrt(ours.numel())
            torch.testing.assert_close(ours.abs().max(), theirs.abs().max(), rtol=0.01, atol=0)
        elif "head" not in name and theirs.unique().numel() == 1:  # a norm starts as the identity
            assert torch.equal(ours, theirs), name
    for (name, ours), theirs in zip(model.named_buffers(), reference.buffers(), strict=True):
        assert torch.equal(ours, theirs), name


def test_only_batch_norm_in_training_mode_couples_samples():
    for norm in ("instance", "group", "none"):
        assert not couples_samples(build("convnet", (1, 8, 8), 2, depth=1, width=4, norm=norm))
    model = build("convnet", (1, 8, 8), 2, depth=1, width=4, norm="batch")
    assert couples_samples(model)
    assert model.couples_samples
    assert not couples_samples(model.eval())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"depth": 4}, "depth goes from 1 to 3"),
        ({"norm": "group", "width": 6}, "divisible by 4"),
        ({"name": "convnte"}, "did you mean 'convnet'"),
        ({"name": "cnn"}, "at least 16x16"),
        ({"name": "leafcnn", "shape": (1, 3, 8)}, "at least 4x4"),
        ({"shape": (10,)}, "model.name=convnet takes images, this data set is text: choose lstm"),
        (
            {"name": "mlp", "shape": (10,)},
            "takes images, a table, series, this data set is text: choose",
        ),
        ({"name": "lstm"}, "model.name=lstm takes text, this data set is images"),
        ({"name": "lstm", "shape": (10,), "embedding": 9}, "not 9 and 8: set model.embedding=0"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_sentence(arguments, says):
    given = {"name": "convnet", "classes": 10, "depth": 2, "width": 8} | arguments
    with pytest.raises(ValueError, match=says) as raised:
        build(given.pop("name"), given.pop("shape", (1, 8, 8)), given.pop("classes"), **given)
    assert "\n" not in str(raised.value)


def test_the_largest_depth_that_is_named_can_be_built():
    model = build("convnet", (1, 8, 8), 3, depth=3, width=4)
    assert model(torch.randn(2, 1, 8, 8)).shape == (2, 3)


def test_smallest_cnn_image():
    assert build("cnn", (1, 16, 16), 10)(torch.randn(2, 1, 16, 16)).shape == (2, 10)
