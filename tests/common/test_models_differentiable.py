"""What methods that differentiate through training need of every model: two derivatives, and many weights at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from seeds import rng
from torch import Tensor
from torch.func import functional_call, grad, vmap

from common.models import MODELS, Classifier, build
from common.models.building import initialise
from common.models.convnet import VGG11
from common.models.resnet import ResNet18, ResNet34

IMAGE, SERIES, TEXT, CLASSES = (2, 16, 16), (2, 1, 16), (3,), 5


class ThinResNet18(ResNet18):
    channels = (4, 4, 8, 8)


class ThinResNet34(ResNet34):
    channels = (4, 4, 8, 8)


class ThinVGG11(VGG11):
    plan = ((4,), (4,), (4, 4), (8, 8), (8, 8))
    hidden = (8, 16)


THIN: dict[str, Callable[[tuple[int, ...], int], Classifier]] = {
    "resnet18": ThinResNet18,
    "resnet34": partial(ThinResNet34, norm="group"),
    "vgg11": ThinVGG11,
}
"""Those whose width is no setting: their own code with fewer channels."""


def tiny(name: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> Classifier:
    shape = {"lstm": TEXT, "conv1d": SERIES}.get(name, IMAGE)
    if name in THIN:
        model = THIN[name](shape, CLASSES)
        initialise(model, rng(seed))
    else:
        model = build(name, shape, CLASSES, depth=2, width=4, generator=rng(seed))
    return model.to(dtype)


def batch(model: Classifier, seed: int = 5) -> tuple[Tensor, Tensor]:
    """Return two continuous inputs and a target for each of their outputs."""
    dtype = next(model.parameters()).dtype
    x = torch.randn(2, *model.continuous_shape, generator=rng(seed), dtype=torch.float64).to(dtype)
    outputs = model(x).flatten(0, -2)
    return x, torch.arange(len(outputs)) % CLASSES


def loss_of(model: Classifier, weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(functional_call(model, weights, (x,)).flatten(0, -2), y)


@pytest.mark.sweep
@pytest.mark.parametrize("name", MODELS)
def test_a_second_derivative_is_the_difference_of_first_ones(name: str) -> None:
    """d/dt of the gradient along a direction of weights and inputs at once, in float64, by central differences."""
    model = tiny(name)
    x, y = batch(model)
    # A VAE's variance has no part in classifying.
    used = {k: p for k, p in model.named_parameters() if not k.startswith("spread.")}
    names, at = list(used), [p.detach().clone() for p in used.values()] + [x]
    draw = rng(9)
    way = [torch.randn(v.shape, generator=draw, dtype=v.dtype) for v in at]

    def slope(t: float, create_graph: bool) -> tuple[list[Tensor], list[Tensor]]:
        here = [(v + t * d).requires_grad_() for v, d in zip(at, way, strict=True)]
        loss = loss_of(model, dict(zip(names, here[:-1], strict=True)), here[-1], y)
        return here, list(torch.autograd.grad(loss, here, create_graph=create_graph))

    here, first = slope(0.0, True)
    along = sum((g * d).sum() for g, d in zip(first, way, strict=True))
    second = torch.autograd.grad(along, here)
    step = 1e-7
    above, below = slope(step, False)[1], slope(-step, False)[1]
    assert max(float(s.abs().max()) for s in second) > 1e-3
    for exact, up, down in zip(second, above, below, strict=True):
        torch.testing.assert_close(exact, (up - down) / (2 * step), rtol=1e-4, atol=1e-5)


@pytest.mark.sweep
@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_stacked_weights_are_those_of_each(name: str) -> None:
    models = [tiny(name, seed) for seed in range(3)]
    weights = [{k: p.detach() for k, p in m.named_parameters()} for m in models]
    stacked = {key: torch.stack([each[key] for each in weights]) for key in weights[0]}
    inputs = torch.stack([batch(models[0], seed)[0] for seed in range(3)])
    _, y = batch(models[0])
    model = models[0]

    def of_one(given: dict[str, Tensor], x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        slopes: tuple[dict[str, Tensor], Tensor] = grad(
            lambda w, v: loss_of(model, w, v, y), argnums=(0, 1)
        )(given, x)
        return slopes

    at_once, of_inputs = vmap(of_one)(stacked, inputs)
    for index, each in enumerate(weights):
        alone, of_input = of_one(each, inputs[index])
        torch.testing.assert_close(of_inputs[index], of_input, rtol=1e-9, atol=1e-12)
        for key, expected in alone.items():
            torch.testing.assert_close(at_once[key][index], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_continuous_inputs_have_the_shape_that_is_named_and_lead_to_the_same_logits(
    name: str,
) -> None:
    model = tiny(name)
    x = torch.tensor([[0, 3, 1], [4, 4, 2]]) if name == "lstm" else batch(model)[0]
    floats = model.continuous(x)
    assert floats.shape == (2, *model.continuous_shape)
    assert floats.dtype == torch.float64
    assert model.continuous(floats) is floats
    torch.testing.assert_close(model(floats), model(x), rtol=0, atol=0)


def test_a_language_models_vectors_lead_gradients_to_the_embedding() -> None:
    model = tiny("lstm")
    model.continuous(torch.tensor([[2, 2, 0]])).sum().backward()
    assert model.embedding.weight.grad is not None
    assert model.embedding.weight.grad[:, 0].tolist() == [1, 0, 2, 0, 0]


@pytest.mark.extended
def test_the_language_model_passes_torchs_own_check_of_second_derivatives() -> None:
    model = build("lstm", (3,), 4, depth=2, width=2, generator=rng(1)).double()
    x = torch.randn(2, 3, 2, dtype=torch.float64, generator=rng(2), requires_grad=True)
    names = [key for key, _ in model.named_parameters()]

    def forward(vectors: Tensor, *weights: Tensor) -> Tensor:
        logits: Tensor = functional_call(model, dict(zip(names, weights, strict=True)), (vectors,))
        return logits

    given = (x, *(p.detach().clone().requires_grad_() for p in model.parameters()))
    assert torch.autograd.gradcheck(forward, given)
    assert torch.autograd.gradgradcheck(forward, given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("depth", [1, 3])
@torch.no_grad()
def test_the_lstm_is_torchs_own(depth: int, dtype: torch.dtype) -> None:
    model = build(
        "lstm", (7,), 11, depth=depth, width=6, embedding=4, tied=False, generator=rng(3)
    ).to(dtype)
    theirs = torch.nn.LSTM(4, 6, num_layers=depth, batch_first=True).to(dtype)
    for number, layer in enumerate(model.layers):
        getattr(theirs, f"weight_ih_l{number}").copy_(layer.inward)
        getattr(theirs, f"weight_hh_l{number}").copy_(layer.recurrent)
        getattr(theirs, f"bias_ih_l{number}").copy_(layer.bias)
        getattr(theirs, f"bias_hh_l{number}").zero_()
    tokens = torch.randint(11, (5, 7), generator=rng(4))
    within = 1e-6 if dtype == torch.float32 else 1e-12
    hidden, _ = theirs(F.embedding(tokens, model.embedding.weight))
    torch.testing.assert_close(model.embed(tokens), hidden, rtol=0, atol=within)
    logits = hidden @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(model(tokens), logits, rtol=0, atol=10 * within)


@torch.no_grad()
def test_a_tied_output_is_the_embeddings_matrix_and_a_bias_of_its_own() -> None:
    model = build("lstm", (7,), 11, depth=1, width=6, generator=rng(3)).double()
    model.head.bias.uniform_(-1, 1, generator=rng(6))
    h = torch.randn(2, 7, 6, dtype=torch.float64, generator=rng(4))
    expected = torch.einsum("ntd,vd->ntv", h, model.embedding.weight) + model.head.bias
    torch.testing.assert_close(model.classify(h), expected)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        # 11*6 for the vectors, 4*6*(6+6)+4*6 a layer, 11 for the output's bias
        ({"width": 6}, 66 + 312 + 11),
        ({"width": 6, "depth": 2}, 66 + 2 * 312 + 11),
        # 11*4 for the vectors, 4*6*(4+6)+4*6, then 4*6*(6+6)+4*6, 6*11+11 for the output
        ({"width": 6, "depth": 2, "embedding": 4, "tied": False}, 44 + 264 + 312 + 77),
    ],
)
def test_the_language_model_has_the_parameters_that_are_counted_by_hand(
    options: dict[str, int], count: int
) -> None:
    model = build("lstm", (7,), 11, **({"depth": 1} | options))
    assert sum(p.numel() for p in model.parameters()) == count


def test_the_language_model_of_the_literatures_reddit_task() -> None:
    """10,000 tokens, one layer of 96: 960,000 + (4 * 96 * 192 + 384) + 10,000."""
    model = build("lstm", (10,), 10_000, depth=1, width=96)
    assert sum(p.numel() for p in model.parameters()) == 960_000 + 74_112 + 10_000
    assert model.continuous_shape == (10, 96)


@torch.no_grad()
def test_the_language_model_starts_as_leafs_vectors_and_torchs_layers() -> None:
    model = build("lstm", (10,), 5000, depth=1, width=64, generator=rng(0))
    assert 0.0999 < float(model.embedding.weight.max()) <= 0.1
    assert -0.1 <= float(model.embedding.weight.min()) < -0.0999
    bound = 1 / 8
    for parameter in model.layers.parameters():
        assert 0.95 * bound < float(parameter.max()) <= bound
        assert -bound <= float(parameter.min()) < -0.95 * bound
    assert not model.head.bias.any()


@torch.no_grad()
def test_a_place_sees_what_was_before_it_and_nothing_behind() -> None:
    model = tiny("lstm")
    one, other = torch.tensor([[1, 2, 3], [1, 2, 4]]), torch.tensor([[1, 2, 3], [0, 2, 4]])
    same = torch.isclose(model(one), model(other), rtol=0, atol=1e-15).all(2)
    assert same.tolist() == [[True, True, True], [False, False, False]]
    assert torch.allclose(model(one)[0, :2], model(one)[1, :2], rtol=0, atol=1e-15)
