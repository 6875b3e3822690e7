"""The style-based generator: its sizes by hand, its convolution by the definition, and the spaces F_n."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from seeds import rng
from slopes import require_slopes
from style_training import start

from synth.generators.latents import FeatureSpace, Latents
from synth.generators.style import Form, StyleNetwork, modulated

LABELS = torch.tensor([3, 0, 3, 1])


def network(shape: tuple[int, int, int] = (1, 8, 8), seed: int = 1) -> StyleNetwork:
    return start(Form(shape, 4, width=6, latent=5), rng(seed)).requires_grad_(False)


# --- sizes ---


@pytest.mark.parametrize(
    ("side", "resolutions"),
    [
        (8, (4, 8)),
        (16, (4, 8, 16)),
        (28, (7, 14, 28)),
        (32, (4, 8, 16, 32)),
        (25, (25,)),
        (4, (4,)),
    ],
)
def test_the_synthesis_begins_at_halved_sides(side: int, resolutions: tuple[int, ...]) -> None:
    form = Form((3, side, side), 4, width=6, latent=5)
    assert form.resolutions == tuple((s, s) for s in resolutions)
    assert form.layers == 3 * len(resolutions)
    model = start(form, rng())
    assert model.constant.shape == (6, resolutions[0], resolutions[0])
    assert model(torch.zeros(2, 5), LABELS[:2]).shape == (2, 3, side, side)


def test_both_sides_of_an_oblong_image_are_halved_equally() -> None:
    assert Form((1, 32, 8), 4).resolutions == ((16, 4), (32, 8))


def test_the_size_by_hand() -> None:
    """Mapping 320 + 32 * 65 + 32 * 33; constant 32 * 16; a layer 32 * 33 + 32 * 289; image 32 * 33 + 33."""
    model = start(Form((1, 8, 8), 10), rng())
    by_hand = 3456 + 512 + 6 * (1056 + 9248) + 1056 + 33
    assert sum(p.numel() for p in model.parameters()) == by_hand == 66_881


@pytest.mark.parametrize(
    "form", [{"classes": 0}, {"width": 0}, {"depth": 0}, {"latent": 0}, {"shape": (0, 8, 8)}]
)
def test_a_form_without_a_size_is_refused(form: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Form(**{"shape": (1, 8, 8), "classes": 10, **form})  # type: ignore[arg-type]


def test_images_of_three_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"4 or more, not \(3, 8\)"):
        Form((1, 3, 8), 10)


def test_initial_weights_come_from_the_generator_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = network(seed=1), network(seed=1), network(seed=2)
    assert torch.equal(before, torch.get_rng_state())
    for (name, a), b, c in zip(
        first.named_parameters(), again.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(a, b)
        assert torch.equal(a, c) == name.endswith("bias")


# --- the modulated convolution ---


@pytest.mark.parametrize("kernel", [1, 3])
def test_the_modulated_convolution_is_a_kernel_of_its_own_for_each_sample(kernel: int) -> None:
    """Karras et al. 2020, equations 1 to 3, written out: modulate, demodulate, convolve, a sample at a time."""
    f = torch.randn(3, 4, 5, 6, dtype=torch.float64, generator=rng(1))
    weight = torch.randn(2, 4, kernel, kernel, dtype=torch.float64, generator=rng(2))
    style = torch.randn(3, 4, dtype=torch.float64, generator=rng(3))
    expected = []
    for sample, s in zip(f, style, strict=True):
        kernels = torch.stack([k * s[:, None, None] for k in weight])
        lengths = torch.stack([k.square().sum().sqrt() for k in kernels])
        own = kernels / lengths[:, None, None, None]
        expected.append(F.conv2d(sample[None], own, padding=kernel // 2)[0])
    found = modulated(f, weight, style)
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-7, atol=1e-7)


def test_the_modulated_convolution_by_hand() -> None:
    """s = (2, 1), w = (3, 8): w' = (6, 8) of length 10; f = (1, 0.5) gives 0.6 + 0.4."""
    f = torch.tensor([1.0, 0.5]).view(1, 2, 1, 1)
    found = modulated(f, torch.tensor([3.0, 8.0]).view(1, 2, 1, 1), torch.tensor([[2.0, 1.0]]))
    assert found.item() == pytest.approx(1.0)


# --- the spaces ---


def every_space(model: StyleNetwork) -> list[FeatureSpace]:
    return [FeatureSpace(model, n) for n in range(model.form.layers + 1)]


@pytest.mark.parametrize("side", [8, 16, 28])
def test_every_space_begins_with_the_same_images(side: int) -> None:
    """Those of z, c and w: whatever n is, nothing has moved yet."""
    model = network((2, side, side))
    z = torch.randn(len(LABELS), 5, generator=rng(7))
    expected = model(z, LABELS)
    assert float(expected.std()) > 0.1
    spaces: list[FeatureSpace] = every_space(model)
    assert len(spaces) >= 7
    for space in spaces:
        found = space.images(space.latents(LABELS, rng(7)))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_the_latents_of_a_space_are_features_and_the_styles_behind_them() -> None:
    """6 layers on 4x4 and 8x8: F_0 has 7 styles; F_2 has 4x4 features and 5; F_6 has 8x8 features and the image's."""
    model = network()
    for n, shapes in {
        0: [(4, 7, 5)],
        2: [(4, 6, 4, 4), (4, 5, 5)],
        4: [(4, 6, 8, 8), (4, 3, 5)],
        6: [(4, 6, 8, 8), (4, 1, 5)],
    }.items():
        latents = FeatureSpace(model, n, rate_w=2.0, rate_f=9.0).latents(LABELS, rng())
        assert [tuple(t.shape) for t in latents.tensors] == shapes
        assert latents.rates == ((9.0, 2.0) if n else (2.0,))
        assert not any(t.requires_grad for t in latents.tensors)


@pytest.mark.parametrize("n", [-1, 7])
def test_a_space_that_is_not_there_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match=f"F_0 to F_6, and no F_{n}"):
        FeatureSpace(network(), n)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n", range(7))
def test_a_gradient_reaches_all_of_every_latent_and_is_its_finite_difference(
    n: int, seed: int
) -> None:
    """Of these draws no unit of a leaky ReLU changes its side within the step, which would bend the difference."""
    space = FeatureSpace(network().double(), n)
    target = torch.randn(4, 1, 8, 8, dtype=torch.float64, generator=rng(seed + 1))
    require_slopes(space, space.latents(LABELS, rng(seed)), target, step=1e-8, seed=seed + 2, per=1)


def leaves(latents: Latents) -> Latents:
    """Return a copy whose tensors ask for gradients."""
    return latents.holding([t.detach().clone().requires_grad_() for t in latents.tensors])


@pytest.mark.parametrize("n", [0, 2, 4])
def test_every_layers_style_is_moved(n: int) -> None:
    space = FeatureSpace(network(), n)
    latents = leaves(space.latents(LABELS, rng()))
    (slope,) = torch.autograd.grad(space.images(latents).square().sum(), latents.tensors[-1:])
    assert bool((slope.abs().sum(2) > 0).all())


def test_an_image_hangs_on_its_own_latents_alone() -> None:
    space = FeatureSpace(network(), 2)
    latents = leaves(space.latents(LABELS, rng()))
    slopes = torch.autograd.grad(space.images(latents)[1].square().sum(), latents.tensors)
    for slope in slopes:
        assert (slope.flatten(1).abs().sum(1) > 0).tolist() == [False, True, False, False]


def test_the_class_makes_another_image_of_the_same_code() -> None:
    model = network()
    z = torch.randn(1, 5, generator=rng(3)).expand(4, 5)
    images = model(z, torch.arange(4)).flatten(1)
    distances = torch.cdist(images, images)
    assert float((distances + 9 * torch.eye(4)).min()) > 0.1
    others = model(z, torch.ones(4, dtype=torch.int64)).flatten(1)
    torch.testing.assert_close(others, images[1].expand(4, 64))


def test_a_space_draws_from_the_generator_alone() -> None:
    space, before = FeatureSpace(network(), 2), torch.get_rng_state()
    first, again, other = (space.latents(LABELS, rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    for a, b, c in zip(first.tensors, again.tensors, other.tensors, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
    assert torch.equal(space.images(first), space.images(again))
