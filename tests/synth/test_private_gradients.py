"""DP-SGD's gradient: against a loop over the examples, and what one example can change."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from seeds import rng
from torch import Tensor, nn

from common.models import build
from common.models.building import initialise
from common.models.encoder import VAE, VAEEncoder
from common.models.resnet import ResNet18
from synth import private_release
from synth.beta_vae import auto_encoding_loss, sampled
from synth.private_release import Gaussian, clipped_sum, example_gradients, noisy_mean

IMAGE, TEXT, CLASSES, N = (2, 16, 16), (6,), 5, 7


class ThinResNet18(ResNet18):
    channels = (4, 4, 8, 8)


def thin_resnet() -> nn.Module:
    model = ThinResNet18(IMAGE, CLASSES, norm="group")
    initialise(model, rng())
    return model


def of(name: str, **given: object) -> nn.Module:
    shape = TEXT if name == "lstm" else IMAGE
    return build(name, shape, CLASSES, generator=rng(), **{"depth": 2, "width": 4, **given})  # type: ignore[arg-type]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "convnet, instance norm": partial(of, "convnet"),
    "convnet, group norm": partial(of, "convnet", norm="group"),
    "resnet18, group norm": thin_resnet,
    "mlp": partial(of, "mlp"),
    "vit": partial(of, "vit", width=32),
    "encoder": partial(of, "encoder"),
    "lstm, tied": partial(of, "lstm"),
    "lstm, untied": partial(of, "lstm", tied=False),
}


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).flatten(0, -2), y.flatten())


def batch_for(name: str, n: int = N, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    if name.startswith("lstm"):
        tokens = torch.randint(CLASSES, (2, n, *TEXT), generator=rng(1))
        return [tokens[0], tokens[1]]
    x = torch.randn(n, *IMAGE, generator=rng(1), dtype=torch.float64)
    return [x.to(dtype), torch.randint(CLASSES, (n,), generator=rng(2))]


def one_by_one(
    model: nn.Module, objective: Callable[..., Tensor], batch: Sequence[Tensor]
) -> list[dict[str, Tensor]]:
    """Return each example's gradient, computed by itself and by autograd alone."""
    named = dict(model.named_parameters())
    found = []
    for i in range(len(batch[0])):
        loss = objective(model, *(part[i : i + 1] for part in batch))
        slopes = torch.autograd.grad(
            loss, list(named.values()), allow_unused=True, materialize_grads=True
        )
        found.append(dict(zip(named, slopes, strict=True)))
    return found


def plain_sum(
    model: nn.Module,
    objective: Callable[..., Tensor],
    batch: Sequence[Tensor],
    clip: float,
    chunk: int = 0,
) -> dict[str, Tensor]:
    """Return the clipped sum as it is without a grid, float64."""
    return clipped_sum(model, objective, batch, Gaussian(0.0, clip, torch.zeros), chunk)


def length(slopes: dict[str, Tensor]) -> float:
    return float(torch.cat([slope.flatten() for slope in slopes.values()]).norm())


@pytest.mark.sweep
@pytest.mark.parametrize("name", MODELS)
def test_every_examples_gradient_is_its_own(name: str) -> None:
    model, batch = MODELS[name]().double(), batch_for(name)
    together = example_gradients(model, cross_entropy, batch)
    for i, alone in enumerate(one_by_one(model, cross_entropy, batch)):
        for parameter, slope in alone.items():
            torch.testing.assert_close(together[parameter][i], slope, rtol=1e-9, atol=1e-12)


@pytest.mark.sweep
@pytest.mark.parametrize("clip", [0.3, 1.0, math.inf])
@pytest.mark.parametrize("name", ["convnet, instance norm", "mlp", "lstm, tied"])
def test_the_sum_of_clipped_gradients_in_the_trainings_own_precision(
    name: str, clip: float
) -> None:
    """Float32 against a loop in float64, to 1e-6 of the sum's length; in chunks of one, of three, and whole."""
    model, batch = MODELS[name](), batch_for(name, dtype=torch.float32)
    found = [plain_sum(model, cross_entropy, batch, clip, chunk) for chunk in (0, 1, 3)]
    wide = [part.double() if part.is_floating_point() else part for part in batch]
    expected: dict[str, Tensor] = {}
    for alone in one_by_one(model.double(), cross_entropy, wide):
        factor = min(1.0, clip / length(alone))
        for parameter, slope in alone.items():
            expected[parameter] = expected.get(parameter, 0) + factor * slope
    for sums in found:
        apart = {parameter: sums[parameter] - slope for parameter, slope in expected.items()}
        assert length(apart) < 1e-6 * length(expected)


def test_of_no_example_there_is_noise_alone() -> None:
    """Twelve numbers of noise of deviation sigma C, over the expected size: 2 x 3 / 4 times what is drawn."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, 3), nn.Linear(1, 1, bias=False))
    model[2].requires_grad_(False)
    drawn = torch.arange(1.0, 13.0)
    gaussian = Gaussian(2.0, 3.0, lambda shape: drawn[: math.prod(shape)])
    batch = torch.zeros(0, 3), torch.zeros(0).long()
    mean = noisy_mean(clipped_sum(model, cross_entropy, batch, gaussian), gaussian, expected=4.0)
    assert list(mean) == ["1.weight", "1.bias"]
    torch.testing.assert_close(mean["1.weight"], 1.5 * drawn[:9].view(3, 3))
    torch.testing.assert_close(mean["1.bias"], 1.5 * drawn[9:])


def test_large_gradients_are_cut_to_the_same_steps_in_pieces() -> None:
    """Two of three rows of 300,000 numbers, more than are converted at once; the other is no number."""
    rows, gaussian = torch.randn(3, 2, 150_000, generator=rng(1)), Gaussian(1.0, 0.5, torch.zeros)
    rows[1, 0, 7], finite = math.nan, rows[[0, 2]].double()
    factors = gaussian.factors([rows])
    assert factors[1] == 0
    scale = 0.5 / finite.flatten(1).norm(dim=1)
    torch.testing.assert_close(factors[[0, 2]], scale, rtol=1e-14, atol=0)
    exact = finite * (factors[[0, 2]] / gaussian.grid).view(2, 1, 1)
    assert torch.equal(gaussian.summed(rows, factors), exact.trunc().sum(0).long())


def test_a_mean_without_noise_asks_for_none() -> None:
    sums = {"w": torch.tensor([3.0, 6.0])}
    mean = noisy_mean(sums, Gaussian(0.0, math.inf, lambda shape: 1 / 0), expected=3.0)
    assert mean["w"].tolist() == [1, 2]


def test_dropout_draws_for_each_example_and_counts_within_its_clip() -> None:
    """Of equal examples some lose the one input and some keep it: gradients 0 and 2, clipped to 0 and 1."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 1, bias=False))
    torch.manual_seed(0)
    slopes = example_gradients(model, lambda net, x: net(x).sum(), (torch.ones(200, 1),))
    assert set(slopes["1.weight"].flatten().tolist()) == {0.0, 2.0}
    total = plain_sum(model, lambda net, x: net(x).sum(), (torch.ones(200, 1),), 1.0)
    assert 60 < float(total["1.weight"]) < 140


def test_a_vaes_noise_is_an_examples_own() -> None:
    """Drawn before, it comes with the batch: the gradient of example i has row i of it."""
    encoder = build("vae", (1, 8, 8), CLASSES, depth=1, width=4, generator=rng())
    assert isinstance(encoder, VAEEncoder)
    model = VAE(encoder, encoder.mirror()).double()

    def objective(net: nn.Module, x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
        assert isinstance(net, VAE)
        mu, log_variance = net.encoder.encode(x)
        z = sampled(mu, log_variance, noise)
        own = auto_encoding_loss(mu, log_variance, net.decoder(z), x)
        return F.cross_entropy(net.encoder.classify(z), y) + 0.05 * own

    x = torch.randn(4, 1, 8, 8, generator=rng(1), dtype=torch.float64)
    noise = torch.randn(4, 4, generator=rng(2), dtype=torch.float64)
    batch = (x, torch.arange(4), noise)
    together = example_gradients(model, objective, batch)
    for i, alone in enumerate(one_by_one(model, objective, batch)):
        for parameter, slope in alone.items():
            torch.testing.assert_close(together[parameter][i], slope, rtol=1e-9, atol=1e-12)


def test_a_gpu_holds_as_many_gradients_as_it_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """ResNet-18 has 11.2 M parameters: two examples a pass on a CPU. Smaller models: 32, or more if these are small."""
    free = [64 << 30]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free[0], 80 << 30))
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    held = private_release._examples_held
    assert [held(11_200_000, each) for each in (cpu, gpu)] == [2, 383]
    assert [held(numbers, cpu) for numbers in (1 << 26, 878_538, 317_706, 1000)] == [
        1,
        32,
        32,
        8388,
    ]
    free[0] = 1 << 20
    assert held(11_200_000, gpu) == 2
