"""ResNets, VGG-11, the ViT and logistic regression: known sizes, and the numbers of torch's and torchvision's own."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
import torchvision
from federation import run
from seeds import rng
from small import Small
from torch import Tensor, nn

from common.models import build
from common.models.building import initialise, outline
from common.models.convnet import VGG11
from common.models.vit import Layer


def images(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=rng(7))


@pytest.mark.parametrize(
    ("name", "shape", "classes", "norm", "count"),
    [
        ("resnet18", (3, 224, 224), 1000, "batch", 11_689_512),
        ("resnet18", (3, 64, 64), 1000, "group", 11_689_512),
        ("resnet18", (3, 32, 32), 10, "instance", 11_173_962),
        ("resnet34", (3, 224, 224), 1000, "batch", 21_797_672),
        ("resnet34", (3, 63, 80), 10, "instance", 21_282_122),
        ("vgg11", (3, 224, 224), 1000, "instance", 132_863_336),
        ("vgg11", (3, 32, 32), 10, "instance", 9_750_922),
        ("logistic", (1, 28, 28), 10, "instance", 7_850),
    ],
)
def test_known_parameter_counts(
    name: str, shape: tuple[int, ...], classes: int, norm: str, count: int
) -> None:
    model = outline(name, shape, classes, norm=norm)
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize(
    ("shape", "patch", "places", "depth", "width"),
    [((3, 32, 32), 4, 64, 3, 128), ((1, 28, 28), 4, 49, 2, 64), ((1, 8, 8), 2, 16, 1, 16)],
)
def test_a_vit_has_the_parameters_of_its_formula(
    shape: tuple[int, int, int], patch: int, places: int, depth: int, width: int
) -> None:
    """A layer has two norms, 4 width^2 + 4 width of attention and 8 width^2 + 5 width behind it."""
    layer = 4 * width + 4 * width**2 + 4 * width + 8 * width**2 + 5 * width
    tokens = shape[0] * patch**2 * width + width + places * width
    expected = tokens + depth * layer + 2 * width + 10 * width + 10
    model = outline("vit", shape, 10, depth=depth, width=width)
    assert sum(p.numel() for p in model.parameters()) == expected


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "vgg11"])
def test_torchvisions_names_and_shapes_from_64_pixels_on_but_for_the_last_layer(name: str) -> None:
    with torch.device("meta"):
        theirs = getattr(torchvision.models, name)().state_dict()
    last = "classifier.6." if name == "vgg11" else "fc."
    ours = outline(name, (3, 64, 64), 1000, norm="batch").state_dict()
    assert {key: value.shape for key, value in ours.items()} == {
        key.replace(last, "head."): value.shape for key, value in theirs.items()
    }


@pytest.mark.extended
@pytest.mark.parametrize("side", [20, 64])
@pytest.mark.parametrize("norm", ["instance", "group", "batch"])
@torch.no_grad()
def test_a_resnet_is_torchvisions_with_the_norm_in_its_place(norm: str, side: int) -> None:
    """Below 64 pixels theirs gets the stem of the literature on CIFAR by hand."""
    layers = {
        "instance": lambda width: nn.InstanceNorm2d(width, affine=True),
        "group": lambda width: nn.GroupNorm(2, width),
        "batch": nn.BatchNorm2d,
    }
    theirs = torchvision.models.resnet18(num_classes=5, norm_layer=layers[norm])
    if side < 64:
        theirs.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        theirs.maxpool = nn.Identity()
    ours = build("resnet18", (3, side, side), 5, norm=norm, generator=rng(1)).double()
    for module in ours.modules():  # norms that are not the identity
        if isinstance(module, nn.GroupNorm | nn.BatchNorm2d):
            module.weight.uniform_(0.5, 1.5, generator=rng(2))
            module.bias.uniform_(-0.5, 0.5, generator=rng(3))
    state = {key.replace("head.", "fc."): value for key, value in ours.state_dict().items()}
    theirs.double().load_state_dict(state)
    x = images(2, 3, side, side)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours(x), ours.classify(ours.embed(x)), rtol=0, atol=0)
    assert ours.embed(x).shape == (2, 512)


@torch.no_grad()
def test_a_vgg_of_a_small_image_has_torchvisions_features_and_two_layers_of_512() -> None:
    vgg = torchvision.models.vgg
    ours = build("vgg11", (3, 32, 32), 7, generator=rng(1)).double()
    theirs = vgg.make_layers(vgg.cfgs["A"]).double()
    theirs.load_state_dict(ours.features.state_dict())
    x = images(2, 3, 32, 32)
    out = theirs(x)
    assert out.shape == (2, 512, 1, 1)
    out = out.flatten(1)
    for layer in (ours.classifier[0], ours.classifier[3]):
        assert layer.weight.shape == (512, 512)
        out = F.relu(F.linear(out, layer.weight, layer.bias))
    torch.testing.assert_close(ours.embed(x), out, rtol=1e-9, atol=1e-9)
    expected = F.linear(out, ours.head.weight, ours.head.bias)
    torch.testing.assert_close(ours(x), expected, rtol=1e-9, atol=1e-9)


class NarrowVGG11(VGG11):
    plan = ((2,), (3,), (4, 4), (5, 5), (6, 6))
    hidden = (8, 9)


@torch.no_grad()
def test_a_vgg_of_a_large_image_spreads_its_places_over_seven_a_side() -> None:
    """64 pixels end as 2x2 places; of seven a side the first four see the first, the last four the last."""
    model = NarrowVGG11((3, 64, 64), 4)
    initialise(model, rng(1))
    x = images(2, 3, 64, 64).float()
    places = model.features(x)
    assert places.shape == (2, 6, 2, 2)
    a, b, c, d = (places[..., i, j] for i in (0, 1) for j in (0, 1))
    rows = [
        [a, (a + b) / 2, b],
        [(a + c) / 2, (a + b + c + d) / 4, (b + d) / 2],
        [c, (c + d) / 2, d],
    ]
    third = [0, 0, 0, 1, 2, 2, 2]
    spread = torch.stack([torch.stack([rows[i][j] for j in third], -1) for i in third], -2)
    assert spread.shape == (2, 6, 7, 7)
    torch.testing.assert_close(model.embed(x), model.classifier(spread.flatten(1)))


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (2, 5, 40), (3, 1, 1)])
def test_a_vgg_leaves_out_the_pools_that_a_small_image_has_no_room_for(
    shape: tuple[int, int, int],
) -> None:
    model = NarrowVGG11(shape, 4)
    pools = sum(isinstance(layer, nn.MaxPool2d) for layer in model.features)
    assert pools == min(5, int(math.log2(min(shape[1:]))))
    assert model(torch.randn(2, *shape)).shape == (2, 4)


@torch.no_grad()
def test_a_vgg_starts_so_that_signals_keep_their_size() -> None:
    """He's start: a deviation of sqrt(2 / (9 * channels going out)), no bias; linear layers start as torch's."""
    model = build("vgg11", (3, 32, 32), 10, generator=rng(4))
    for layer in model.features:
        if isinstance(layer, nn.Conv2d):
            expected = math.sqrt(2 / (9 * layer.out_channels))
            assert float(layer.weight.std()) == pytest.approx(expected, rel=0.05)
            assert not layer.bias.any()
    assert float(model.classifier[0].weight.abs().max()) == pytest.approx(512**-0.5, rel=0.01)


@torch.no_grad()
def test_a_layer_of_the_vit_is_torchs_own() -> None:
    ours = Layer(12, 3).double()
    theirs = nn.TransformerEncoderLayer(
        12, 3, 48, dropout=0, activation="gelu", batch_first=True, norm_first=True
    ).double()
    names = {
        "attention.inward.weight": "self_attn.in_proj_weight",
        "attention.inward.bias": "self_attn.in_proj_bias",
        "attention.outward.": "self_attn.out_proj.",
        "widen.": "linear1.",
        "narrow.": "linear2.",
    }
    state = ours.state_dict()
    for mine, other in names.items():
        state = {key.replace(mine, other): value for key, value in state.items()}
    state = {key: torch.randn(v.shape, dtype=v.dtype, generator=rng(1)) for key, v in state.items()}
    theirs.load_state_dict(state)
    for mine, other in names.items():
        state = {key.replace(other, mine): value for key, value in state.items()}
    ours.load_state_dict(state)
    x = images(2, 5, 12)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_a_vit_knows_a_patch_by_its_place_and_gives_the_mean_token() -> None:
    """A layer is the identity where what it adds is 0; then the embedding is a mean of norms, worked out here."""
    model = build("vit", (2, 6, 4), 3, depth=1, width=8, generator=rng(1)).double()
    layer = model.layers[0]
    for part in (layer.attention.outward, layer.narrow):
        part.weight.zero_()
        part.bias.zero_()
    assert model.patches.kernel_size == (2, 2)
    x = images(2, 2, 6, 4)
    cut = torch.stack(
        [x[..., i : i + 2, j : j + 2].flatten(1) for i in (0, 2, 4) for j in (0, 2)], 1
    )
    tokens = F.linear(cut, model.patches.weight.flatten(1), model.patches.bias)
    placed = tokens + model.positions.weight
    expected = F.layer_norm(placed, (8,), model.norm.weight, model.norm.bias).mean(1)
    torch.testing.assert_close(model.embed(x), expected, rtol=1e-9, atol=1e-9)
    assert 0.015 < float(model.positions.weight.std()) < 0.025


@torch.no_grad()
def test_logistic_regression_is_one_linear_layer_on_the_pixels() -> None:
    model = build("logistic", (2, 3, 5), 4, generator=rng(1))
    x = torch.randn(6, 2, 3, 5)
    assert torch.equal(model.embed(x), x.reshape(6, 30))
    torch.testing.assert_close(model(x), x.reshape(6, 30) @ model.head.weight.T + model.head.bias)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": "resnet18", "norm": "none"}, "instance, group, batch"),
        (
            {"name": "resnet18", "shape": (1, 8, 8)},
            "last feature map is 1x1, which instance norm would zero",
        ),
        ({"name": "vit", "width": 100}, "multiple of 32"),
        ({"name": "vit", "shape": (1, 17, 17)}, "cannot cut images of 17x17"),
        ({"name": "vit", "shape": (1, 3, 30)}, "cannot cut images of 3x30"),
        (
            {"name": "logistic", "shape": (10,)},
            "takes images, a table, series, this data set is text",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(arguments: dict[str, object], says: str) -> None:
    given = {"name": "vit", "shape": (3, 32, 32), **arguments}
    with pytest.raises(ValueError, match=says) as raised:
        build(given.pop("name"), given.pop("shape"), 10, **given)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("shape", "norm"), [((1, 8, 8), "group"), ((1, 9, 8), "instance")])
def test_the_smallest_images_that_a_resnet_takes_decide_its_output(
    shape: tuple[int, int, int], norm: str
) -> None:
    model = build("resnet18", shape, 3, norm=norm).eval()
    with torch.no_grad():
        one, other = model(torch.randn(2, *shape, generator=rng(1)))
    assert float((one - other).abs().max()) > 1e-3


# ---- in whole runs -----------------------------------------------------------------------------------


FEW = "data.images=60 feddm.real_batch=4 feddm.iterations=1 image_training.epochs=1 evaluation.batch=400"


@pytest.mark.extended
@pytest.mark.parametrize("words", ["model.name=logistic", "model.name=vit model.depth=1"])
def test_a_round_of_feddm(small: Small, words: str) -> None:
    lines = run(small(method="feddm", rounds=1, set=f"{FEW} {words}")).metrics()
    first, last = (line["test"]["loss"] for line in lines)
    assert math.isfinite(last)
    assert last != first


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("words", "above"),
    [
        ("model.name=logistic fedavg.lr=0.1", 0.85),
        (
            "model.name=vit model.width=32 model.depth=1 fedavg.local_optimizer=adam fedavg.lr=0.003",
            0.4,
        ),
    ],
)
def test_fedavg_learns_digits(small: Small, words: str, above: float) -> None:
    words += " fedavg.epochs=3 fedavg.batch=16"
    lines = run(small(method="fedavg", rounds=2, set=words)).metrics()
    assert lines[-1]["test"]["accuracy"] > above
