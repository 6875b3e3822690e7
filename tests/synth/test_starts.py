"""Where synthetic images start: statistics of the noises, means and mixtures by hand, small classes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import rng
from torch import Tensor

from synth.starts import (
    BESIDE_MEAN,
    MEAN_OF,
    mean_start,
    mix_start,
    noise_start,
    real_start,
    smooth_noise,
    smooth_start,
)


def test_noise_start_is_standard_and_class_major():
    images, labels = noise_start(torch.tensor([4, 1, 4]), 50, (3, 8, 8), rng())
    assert labels.tolist() == [1] * 50 + [4] * 50
    assert images.shape == (100, 3, 8, 8)
    assert images.mean().item() == pytest.approx(0, abs=0.03)
    assert images.std().item() == pytest.approx(1, abs=0.03)


def test_real_start_takes_real_images_and_each_of_a_small_class_once():
    data = torch.arange(7.0).view(7, 1, 1, 1)
    labels = torch.tensor([2, 0, 2, 2, 0, 5, 2])
    images, given_labels = real_start(lambda at: data[at], labels, 3, rng(3))
    assert given_labels.tolist() == [0] * 2 + [2] * 3 + [5]
    values = images.flatten().int().tolist()
    assert set(values[:2]) == {1, 4}
    assert len(set(values[2:5]) & {0, 2, 3, 6}) == 3
    assert values[5:] == [5]
    images.zero_()
    assert data.sum() == 21


def test_starts_refuse_an_empty_site():
    with pytest.raises(ValueError, match="at least one"):
        real_start(lambda at: at, torch.empty(0, dtype=torch.int64), 3, rng())


# --- smooth noise


def low_share(images: Tensor) -> float:
    """Return the share of the energy at no more than an eighth of a cycle a pixel, along both sides."""
    power = torch.fft.fft2(images.double()).abs().square()
    low = [torch.fft.fftfreq(side).abs() <= 1 / 8 for side in images.shape[-2:]]
    return float(power[..., low[0], :][..., low[1]].sum() / power.sum())


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 27, 31)])
def test_smooth_noise_has_unit_variance_and_low_frequencies(shape: tuple[int, int, int]) -> None:
    images = smooth_noise(400, shape, rng())
    assert images.shape == (400, *shape)
    assert images.square().mean().item() == pytest.approx(1, abs=1e-5)
    assert images.mean().item() == pytest.approx(0, abs=0.1)
    plain = low_share(torch.randn(400, *shape, generator=rng(1)))
    assert plain < 0.15
    assert low_share(images) > 0.8


def test_its_grid_is_a_quarter_as_fine_and_no_finer() -> None:
    """16 random numbers an image: images of 16x16 pixels span no more dimensions than that."""
    images = smooth_noise(200, (1, 16, 16), rng()).flatten(1).double()
    values = torch.linalg.svdvals(images)
    assert values[15] > 1
    assert values[16] < 1e-3


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 40)),
    st.lists(st.integers(0, 4), min_size=1, max_size=40),
    st.integers(1, 4),
    st.integers(2, 6),
    st.booleans(),
)
def test_every_start_has_its_form(
    shape: tuple[int, int, int], classes: list[int], ipc: int, of: int, noise: bool
) -> None:
    labels = torch.tensor(classes)
    data = torch.randn(len(labels), *shape, generator=rng(5))
    held = {c: classes.count(c) for c in set(classes)}

    def inputs(at: Tensor) -> Tensor:
        return data[at]

    starts = {
        "smooth": smooth_start(labels, ipc, shape, rng(1)),
        "mean": mean_start(inputs, labels, ipc, shape, rng(1)),
        "mix": mix_start(inputs, labels, ipc, of, shape, rng(1), small_as_noise=noise),
    }
    for name, (images, given_labels) in starts.items():
        kept = [c for c in sorted(held) if name != "mix" or noise or held[c] >= of]
        assert given_labels.tolist() == [c for c in kept for _ in range(ipc)]
        assert images.shape == (len(given_labels), *shape)
        assert torch.isfinite(images).all()


def test_a_smooth_start_is_the_labels_alone() -> None:
    images, labels = smooth_start(torch.tensor([4, 1, 4]), 2, (3, 8, 8), rng())
    assert labels.tolist() == [1, 1, 4, 4]
    assert torch.equal(images, smooth_noise(4, (3, 8, 8), rng()))


# --- means


def test_a_mean_start_is_the_class_s_mean_under_half_the_smooth_noise() -> None:
    labels = torch.tensor([0] * 300 + [1] * MEAN_OF + [2] * (MEAN_OF - 1))
    labels = labels[torch.randperm(len(labels), generator=rng(3))]
    data = torch.randn(len(labels), 1, 8, 8, generator=rng(4)) + labels.view(-1, 1, 1, 1)
    images, given_labels = mean_start(lambda at: data[at], labels, 3, (1, 8, 8), rng())
    smooth, _ = smooth_start(labels, 3, (1, 8, 8), rng())
    for c in (0, 1):
        expected = BESIDE_MEAN * smooth[given_labels == c] + data[labels == c].mean(0)
        torch.testing.assert_close(images[given_labels == c], expected)
    assert torch.equal(images[given_labels == 2], smooth[given_labels == 2]), (
        "nine show too much of each"
    )


# --- mixtures


def powers(labels: Tensor) -> Tensor:
    """Return an image of one pixel for each label, 2 to the power of its place: a sum says which were summed."""
    return (2.0 ** torch.arange(len(labels))).view(-1, 1, 1, 1)


@pytest.mark.parametrize("of", [2, 3, 5])
def test_each_image_is_the_mean_of_so_many_distinct_ones_of_its_class(of: int) -> None:
    labels = torch.tensor([0, 1, 0, 1, 1, 0, 1, 0, 1, 0, 0])
    data = powers(labels)
    images, given_labels = mix_start(lambda at: data[at], labels, 20, of, (1, 1, 1), rng())
    assert given_labels.tolist() == [0] * 20 + [1] * 20
    sums = (images.flatten() * of).round().int().tolist()
    drawn = [[i for i in range(11) if total >> i & 1] for total in sums]
    assert all(len(each) == of for each in drawn), "distinct ones"
    assert all(
        {int(labels[i]) for i in each} == {int(c)}
        for each, c in zip(drawn, given_labels, strict=True)
    )
    assert len({tuple(each) for each in drawn[:20]}) > 1, "each its own"
    assert {i for each in drawn for i in each} == set(range(11)), "every image takes part"


def test_a_mixture_has_the_root_of_one_over_k_of_the_deviation() -> None:
    labels = torch.zeros(4000, dtype=torch.int64)
    data = torch.randn(4000, 1, 4, 4, generator=rng(2)) + 3
    images, _ = mix_start(lambda at: data[at], labels, 1000, 16, (1, 4, 4), rng())
    assert images.mean().item() == pytest.approx(3, abs=0.02)
    assert images.std().item() == pytest.approx(1 / 4, rel=0.05)


def test_a_class_with_too_few_starts_from_smooth_noise_or_is_left_out() -> None:
    labels = torch.tensor([0, 1, 1, 1, 2])
    data = torch.full((5, 1, 8, 8), 7.0)

    def start(noise: bool) -> tuple[Tensor, Tensor]:
        return mix_start(lambda at: data[at], labels, 2, 3, (1, 8, 8), rng(), small_as_noise=noise)

    images, given_labels = start(True)
    smooth, _ = smooth_start(labels, 2, (1, 8, 8), rng())
    assert given_labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert torch.equal(images[[0, 1, 4, 5]], smooth[[0, 1, 4, 5]])
    torch.testing.assert_close(images[2:4], data[:2])
    images, given_labels = start(False)
    assert given_labels.tolist() == [1, 1]
    torch.testing.assert_close(images, data[:2])
