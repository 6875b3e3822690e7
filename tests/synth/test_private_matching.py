"""Private distribution matching: contributions against autograd, one example at a time; clip, noise and sampling."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from matching import distil, distil_privately, matching_loss
from scipy.stats import binom, chi2
from seeds import rng
from torch import Tensor, nn

from common.models import Classifier, build
from synth import private_release
from synth.distribution_matching import features
from synth.private_matching import Mechanism, PoissonClasses, rows_see_each_other
from synth.private_release import Contributions, Gaussian, noisy_gradients, noisy_means

pytestmark = pytest.mark.promise(
    "What leaves a site is not a private image",
    "One image or example moves a sum by the clip at most (exchanged: twice)",
)

LABELS = torch.tensor([2, 0, 0, 4, 2, 0, 2, 0, 0])
IPC = 3
MECHANISMS: tuple[Mechanism, ...] = ("gradient", "feature")

ROUNDED = 1e-12
"""What float64 may leave of a difference of two sums of nine clipped rows whose products were grouped otherwise."""


def silence(shape: Sequence[int]) -> Tensor:
    raise AssertionError("without noise none is drawn")


def all_of(rates: Tensor) -> Tensor:
    return torch.arange(len(rates))


def none_of(rates: Tensor) -> Tensor:
    return torch.arange(0)


class Problem:
    """A network, nine real images of classes 0, 2 and 4 (one of class 4), and three synthetic ones of each."""

    def __init__(self, norm: str = "instance", dtype: torch.dtype = torch.float64) -> None:
        self.model: Classifier = build(
            "convnet", (2, 8, 8), 5, depth=2, width=4, norm=norm, generator=rng(1)
        ).to(dtype)
        self.real = torch.randn(9, 2, 8, 8, generator=rng(2), dtype=dtype)
        self.syn = torch.randn(9, 2, 8, 8, generator=rng(3), dtype=dtype)
        self.syn_labels = torch.tensor([0, 2, 4]).repeat_interleave(IPC)
        self.batches = PoissonClasses.plan(LABELS, 100)

    def embed(self, x: Tensor) -> Tensor:
        return features(self.model, x)

    def contributions(self, without: int | None = None) -> Contributions:
        at, ranks = self.batches.draw(all_of)
        keep = torch.ones_like(at, dtype=torch.bool) if without is None else at != without
        with torch.no_grad():
            return Contributions(self.embed(self.real[at[keep]]), ranks[keep], 3)

    def sums(self, mechanism: Mechanism, gaussian: Gaussian, real: Contributions) -> Tensor:
        """Return what is released but for the divisor, by class."""
        ones = torch.ones(3, dtype=torch.float64)
        if mechanism == "feature":
            return noisy_means(real, ones, gaussian)
        return noisy_gradients(self.embed, real, self.syn, ones, gaussian).view(3, -1)

    def gradient_of(self, real: Tensor, labels: Tensor) -> Tensor:
        """Return the plain gradient of Eq. 9 by class, zero where ``labels`` has none, [3, pixels]."""
        held = torch.isin(self.syn_labels, labels)
        leaf = self.syn[held].clone().requires_grad_()
        loss = matching_loss(self.model, real, labels, leaf, self.syn_labels[held])
        whole = torch.zeros_like(self.syn)
        (whole[held],) = torch.autograd.grad(loss, leaf)
        return whole.view(3, -1)


# ---- contributions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [math.inf, 0.7, 0.05])
@pytest.mark.parametrize("pixels", [1, 7 * 64, 1 << 20])
def test_clipped_gradients_are_those_of_each_example_alone(
    clip: float, pixels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eq. 9 of a batch of one example has g(x_i) for its gradient: clipped and added up here, one at a time."""
    monkeypatch.setattr(private_release, "_CHUNK_PIXELS", {"cpu": pixels})
    p = Problem()
    wanted = torch.zeros(3, p.syn[0].numel() * IPC, dtype=torch.float64)
    lengths = []
    for x, y in zip(p.real, LABELS, strict=True):
        g = p.gradient_of(x[None], y[None])
        lengths.append(float(g.norm()))
        wanted += g * min(1.0, clip / lengths[-1])
    if clip == 0.7:
        assert min(lengths) < clip < max(lengths), "some are clipped and some are not"
    found = p.sums("gradient", Gaussian(0.0, clip, silence), p.contributions())
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)


def test_their_mean_is_the_gradient_of_feddm() -> None:
    """With J twice the Jacobian: the paper's Eq. 20 would give half of it."""
    p = Problem()
    gaussian = Gaussian(0.0, math.inf, silence)
    found = noisy_gradients(p.embed, p.contributions(), p.syn, p.batches.expected, gaussian)
    wanted = p.gradient_of(p.real, LABELS).view_as(found)
    assert float((found - wanted).abs().max()) < 1e-6 * float(wanted.abs().max())


def test_clipped_features_are_those_of_each_example_alone() -> None:
    p = Problem()
    clip = float(p.contributions().rows.norm(dim=1).median())
    found = p.sums("feature", Gaussian(0.0, clip, silence), p.contributions())
    for rank, c in enumerate((0, 2, 4)):
        rows = [p.embed(x[None])[0].detach() for x in p.real[c == LABELS]]
        wanted = sum(row * min(1.0, clip / float(row.norm())) for row in rows)
        torch.testing.assert_close(found[rank], wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e6, 1e200, math.inf, math.nan])
def test_one_example_moves_its_own_classs_sum_by_the_clip_at_most(
    mechanism: Mechanism, scale: float
) -> None:
    """Whatever it is: very long, or no numbers at all."""
    p = Problem()
    gaussian = Gaussian(0.0, 0.3, silence)
    for who in range(len(LABELS)):
        p.real = torch.randn(9, 2, 8, 8, generator=rng(who), dtype=torch.float64)
        p.real[who] *= scale
        with_, without = (p.sums(mechanism, gaussian, p.contributions(w)) for w in (None, who))
        moved = (with_ - without).norm(dim=1)
        own = sorted({0, 2, 4}).index(int(LABELS[who]))
        assert bool(moved.isfinite().all())
        assert float(moved[own]) <= 0.3 * (1 + 1e-9)
        assert float(moved.sum() - moved[own]) < ROUNDED
        if mechanism == "gradient" and scale == 1.0:
            assert float(moved[own]) == pytest.approx(0.3), "each is longer here, and so tight"


# ---- the whole ----------------------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {
    "iterations": 4,
    "image_lr": 0.7,
    "image_momentum": 0.5,
    "rho": 0.0,  # weights that the two forms' different draws cannot tell apart
}


def distilled(p: Problem, mechanism: Mechanism, **changes: Any) -> Tensor:
    given: dict[str, Any] = {
        "mechanism": mechanism,
        "gaussian": Gaussian(0.0, math.inf, silence),
        "sample": all_of,
        "generator": rng(9),
        **SETTINGS,
        **changes,
    }
    return distil_privately(p.model, lambda at: p.real[at], p.batches, p.syn, **given)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_without_clip_noise_and_sampling_it_is_feddm(
    mechanism: Mechanism, dtype: torch.dtype
) -> None:
    p = Problem(dtype=dtype)
    plain = distil(
        p.model, lambda at: p.real[at], LABELS, p.syn, p.syn_labels, real_batch=100,
        generator=rng(9), **SETTINGS,
    )  # fmt: skip
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5
    found = distilled(p, mechanism)
    torch.testing.assert_close(found, plain.images, rtol=tolerance, atol=tolerance)
    assert not torch.equal(found, p.syn)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_same_augmentation_meets_both(mechanism: Mechanism) -> None:
    """One iteration, whose draws are the same in both forms: a transform, then the weights."""
    p = Problem()
    once = {"iterations": 1, "rho": 2.0, "augment": "color_crop_cutout_flip_scale_rotate"}
    plain = distil(
        p.model, lambda at: p.real[at], LABELS, p.syn, p.syn_labels, real_batch=100,
        generator=rng(9), **SETTINGS | once,
    )  # fmt: skip
    torch.testing.assert_close(distilled(p, mechanism, **once), plain.images)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_only_the_synthetic_images_in_use_move(mechanism: Mechanism) -> None:
    p = Problem()
    moved = (distilled(p, mechanism, syn_batch=2, iterations=1) - p.syn).flatten(1).norm(dim=1) > 0
    assert moved.view(3, IPC).sum(1).tolist() == [2, 2, 2]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_nothing_handed_in_is_changed(mechanism: Mechanism) -> None:
    p = Problem()
    p.model.eval()
    before = copy.deepcopy((p.model.state_dict(), p.real, p.syn))
    distilled(p, mechanism, rho=2.0)
    assert not p.model.training
    assert all(torch.equal(v, before[0][k]) for k, v in p.model.state_dict().items())
    assert torch.equal(p.real, before[1])
    assert torch.equal(p.syn, before[2])


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_an_empty_batch_is_noise_alone(mechanism: Mechanism) -> None:
    """Of each other's data nothing is left: two sites' images are the same."""
    p, other = Problem(), Problem()
    other.real = torch.randn(9, 2, 8, 8, generator=rng(77), dtype=torch.float64)
    p.batches = other.batches = PoissonClasses.plan(LABELS, 1, torch.full((3,), 2.0))
    gaussian = Gaussian(1.0, 0.5, lambda shape: torch.randn(tuple(shape), generator=rng(5)))
    one, two = (distilled(q, mechanism, sample=none_of, gaussian=gaussian) for q in (p, other))
    assert torch.equal(one, two)
    assert not torch.equal(one, p.syn)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_noise_has_sigma_times_clip_on_every_number_and_none_twice(mechanism: Mechanism) -> None:
    """Sums of squares against chi-squared, and products of two classes' noise; each fails once in a million runs."""
    p = Problem()
    real = p.contributions()
    sigma, clip = 1.7, 0.3
    given = rng(11)
    gaussian = Gaussian(sigma, clip, lambda shape: torch.randn(tuple(shape), generator=given))
    still = p.sums(mechanism, Gaussian(0.0, clip, silence), real)
    noise = torch.stack([p.sums(mechanism, gaussian, real) - still for _ in range(200)])
    z = noise / (sigma * clip)
    low, high = chi2.ppf([5e-7, 1 - 5e-7], z.numel())
    assert low < float(z.square().sum()) < high
    for a, b in ((z[:, 0], z[:, 1]), (z[:, 1], z[:, 2]), (z[1:], z[:-1])):
        assert abs(float((a * b).mean())) < 4.9 / math.sqrt(a.numel())


def test_the_divisor_is_the_expected_size_whoever_was_drawn() -> None:
    p = Problem()
    real = p.contributions(without=3)
    gaussian = Gaussian(0.0, 0.3, silence)
    halves = PoissonClasses.plan(LABELS, 2, torch.tensor([8.0, 4.0, 1.0]))
    assert halves.expected.tolist() == [2.0, 2.0, 1.0]
    sums = p.sums("feature", gaussian, real)
    found = noisy_means(real, halves.expected, gaussian)
    torch.testing.assert_close(found, sums / torch.tensor([[2.0], [2.0], [1.0]]))
    found = noisy_gradients(p.embed, real, p.syn, halves.expected, gaussian).view(3, -1)
    sums = p.sums("gradient", gaussian, real)
    torch.testing.assert_close(found, sums / torch.tensor([[2.0], [2.0], [1.0]]))


def test_what_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="choose a model with another normalisation"):
        distilled(Problem("batch"), "feature")
    p = Problem()
    p.syn = p.syn[:8]
    with pytest.raises(ValueError, match="not equally many of 3 classes"):
        distilled(p, "feature")
    with pytest.raises(FloatingPointError, match="lower the images' learning rate"):
        distilled(Problem(dtype=torch.float32), "feature", image_lr=1e38, iterations=9)


# ---- Poisson samples ----------------------------------------------------------------------------------


def test_each_is_drawn_with_its_classs_chance() -> None:
    """Binomial counts of every example, and of the batch; each fails once in a million runs."""
    batches = PoissonClasses.plan(LABELS, 2)
    given = rng(4)
    drawn = torch.zeros(9)
    for _ in range(4000):
        at, ranks = batches.draw(
            lambda rates: (
                (torch.rand(len(rates), generator=given, dtype=torch.float64) < rates)
                .nonzero()
                .flatten()
            )
        )
        assert batches.classes[ranks].tolist() == LABELS[at].tolist()
        assert ranks.tolist() == sorted(ranks.tolist())
        drawn[at] += 1
    rates = {0: 2 / 5, 2: 2 / 3, 4: 1.0}
    for count, label in zip(drawn.tolist(), LABELS.tolist(), strict=True):
        q = rates[label]
        assert binom.ppf(5e-7, 4000, q) <= count <= binom.isf(5e-7, 4000, q)
    assert batches.rates.tolist() == [2 / 5, 2 / 3, 1.0]
    assert batches.expected.tolist() == pytest.approx([2, 2, 1])
    assert batches.rate == 1.0


def test_counts_that_are_given_stand_for_the_true_ones() -> None:
    batches = PoissonClasses.plan(LABELS, 2, torch.tensor([10.0, -3.0, 4.0]))
    assert batches.rates.tolist() == [0.2, 1.0, 0.5]
    assert batches.expected.tolist() == [2.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="do not go with 3 classes"):
        PoissonClasses.plan(LABELS, 2, torch.ones(5))
    with pytest.raises(ValueError, match="a batch of at least 1"):
        PoissonClasses.plan(LABELS, 0)


# ---- rows that see each other -----------------------------------------------------------------------------


class Counting(nn.Module):
    """Scales by how often it was called, which it keeps."""

    couples_samples = False
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros(()))

    def embed(self, x: Tensor) -> Tensor:
        """Return what the layer makes of x, and count."""
        self.calls += 1
        out: Tensor = self.layer(x.flatten(1))
        return out

    def classify(self, h: Tensor) -> Tensor:
        """Return h."""
        return h


class Ranked(Counting):
    """Gives a row the number of the rows before it."""

    def embed(self, x: Tensor) -> Tensor:
        """Return the row's place beside what the layer makes of it."""
        out: Tensor = self.layer(x.flatten(1))
        return out + torch.arange(len(x))[:, None]


def test_a_model_is_tried_for_what_one_image_does_to_others() -> None:
    for norm in ("none", "instance", "group"):
        model = build("convnet", (1, 8, 8), 3, depth=1, width=4, norm=norm)
        assert not rows_see_each_other(model, (1, 8, 8)), norm
    assert not rows_see_each_other(build("vit", (1, 8, 8), 3, depth=1, width=32), (1, 8, 8))
    for broken in (Counting(), Ranked()):
        assert rows_see_each_other(broken, (1, 2, 2)), type(broken).__name__
