"""DSA: one draw is one transform, whatever the batch; gradients; hand-made pictures."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.augmentation import TRANSFORMS, Draw, apply, color, cutout, draws, parse, shift, warp

ALL = "color_crop_cutout_flip_scale_rotate"
uniforms = st.tuples(*[st.floats(0, 1, exclude_max=True)] * 3)


def _images(count: int = 3, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, 2, 8, 6, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_the_strategy_names_all_six():
    assert parse(ALL) == tuple(TRANSFORMS)
    assert parse("") == ()


@pytest.mark.extended
@settings(deadline=None)  # a busy machine is no failure
@given(st.sampled_from(parse(ALL)), uniforms)
def test_real_and_synthetic_images_get_the_same_transform(name, numbers):
    """An image comes out the same alone and in any batch, so two batches of one draw agree."""
    draw, images = Draw(name, numbers), _images()
    together = apply(images, draw)
    assert together.shape == images.shape
    for at in range(len(images)):
        torch.testing.assert_close(apply(images[at : at + 1], draw)[0], together[at])


@pytest.mark.parametrize("name", parse(ALL))
@pytest.mark.parametrize("numbers", [(0.1, 0.9, 0.3), (0.8, 0.2, 0.6)])
def test_gradients_pass_through_every_transform(name, numbers):
    images = _images(1, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: apply(x, Draw(name, numbers)), (images,))
    (gradient,) = torch.autograd.grad(apply(images, Draw(name, numbers)).square().sum(), images)
    assert gradient.abs().sum() > 0


IDENTITY_SCALE = (1 - 1 / 1.2) / (1.2 - 1 / 1.2)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("color", (0.5, 0.5, 0.5)),
        ("crop", (0.5, 0.5, 0.0)),
        ("flip", (0.5, 0.0, 0.0)),
        ("scale", (IDENTITY_SCALE, IDENTITY_SCALE, 0.0)),
        ("rotate", (0.5, 0.0, 0.0)),
    ],
)
def test_identity_settings(name, numbers):
    images = _images(dtype=torch.float64)
    torch.testing.assert_close(apply(images, Draw(name, numbers)), images, rtol=1e-12, atol=1e-12)


def test_shift_moves_a_pixel():
    picture = torch.zeros(1, 1, 4, 4)
    picture[0, 0, 1, 2] = 1
    assert shift(picture, 2, -1).nonzero().tolist() == [[0, 0, 3, 1]]
    assert shift(picture, -1, 1).nonzero().tolist() == [[0, 0, 0, 3]]
    assert shift(picture, 3, 0).count_nonzero() == 0


def test_crop_reaches_an_eighth_of_the_side_and_no_further():
    picture = torch.zeros(1, 1, 16, 16)
    picture[0, 0, 8, 8] = 1
    seen = set()
    for down in torch.linspace(0, 0.999, 50).tolist():
        for right in torch.linspace(0, 0.999, 50).tolist():
            (place,) = apply(picture, Draw("crop", (down, right, 0.0))).nonzero().tolist()
            seen.add((place[2] - 8, place[3] - 8))
    assert seen == {(a, b) for a in range(-2, 3) for b in range(-2, 3)}


def test_cutout_blanks_what_lies_in_the_image():
    ones = torch.ones(2, 1, 6, 8)
    blank = 1 - cutout(ones, (3, 4), (3, 4))
    assert blank[0, 0].nonzero().tolist() == [[r, c] for r in (2, 3, 4) for c in (2, 3, 4, 5)]
    corner = 1 - cutout(ones, (0, 0), (3, 4))
    assert corner[1, 0].nonzero().tolist() == [[r, c] for r in (0, 1) for c in (0, 1)]
    assert torch.equal(cutout(ones, (0, 0), (0, 0)), ones)


def test_flip_mirrors_the_whole_batch():
    images = _images()
    assert torch.equal(apply(images, Draw("flip", (0.2, 0, 0))), images.flip(-1))


def test_color_by_hand():
    """Two channels 1 and 3: brightness adds 1 -> 2, 4; grey 3, saturation 2 -> 1, 5; contrast."""
    picture = torch.tensor([1.0, 3.0]).view(1, 2, 1, 1)
    torch.testing.assert_close(color(picture, 1.0, 2.0, 0.5).flatten(), torch.tensor([2.0, 4.0]))


def test_warp_agrees_with_torchs_affine_grid():
    images, angle = _images(dtype=torch.float64), 0.2
    matrix = ((1.1 * math.cos(angle), -math.sin(angle)), (math.sin(angle), 0.9 * math.cos(angle)))
    theta = torch.tensor(matrix, dtype=torch.float64)
    theta = torch.cat((theta, torch.zeros(2, 1, dtype=torch.float64)), 1).expand(3, -1, -1)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    expected = F.grid_sample(images, grid, align_corners=False)
    torch.testing.assert_close(warp(images, matrix), expected)


def test_draws_choose_every_transform_and_repeat_by_seed():
    names = parse(ALL)
    one = draws(names, 600, torch.Generator().manual_seed(1))
    assert one == draws(names, 600, torch.Generator().manual_seed(1))
    for name in names:  # 100 expected, standard deviation 9
        assert 60 < sum(draw.transform == name for draw in one) < 140
    assert all(0 <= number < 1 for draw in one for number in draw.uniforms)


@pytest.mark.parametrize(("number", "degrees"), [(0.0, -15), (0.75, 7.5)])
def test_rotate_turns_by_up_to_15_degrees(number, degrees):
    a = math.radians(degrees)
    images = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    turned = apply(images, Draw("rotate", (number, 0.5, 0.5)))
    expected = warp(images, ((math.cos(a), -math.sin(a)), (math.sin(a), math.cos(a))))
    torch.testing.assert_close(turned, expected)


def test_scale_stretches_each_side_by_up_to_a_fifth():
    images = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    scaled = apply(images, Draw("scale", (0.0, 0.5, 0.5)))
    torch.testing.assert_close(scaled, warp(images, ((1 / 1.2, 0), (0, (1.2 + 1 / 1.2) / 2))))
