"""FedDPMS' mathematics: matching, means and copies by hand, and what the loss of the VAE is."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from synth.beta_vae import auto_encoding_loss, kl_to_prior, sampled
from synth.latent_sharing import (
    accepted_copies,
    best_match,
    mean_codes,
    mean_steps,
    most_abundant,
    scarcest,
)
from synth.private_release import Gaussian


def test_scarce_and_abundant_classes_by_hand() -> None:
    """Counts 5 0 9 5 0 2: none of 1 and 4, then two of 5; most of 2, then 0 and 3, equal, the lower label first."""
    counts = [5, 0, 9, 5, 0, 2]
    assert scarcest(counts, 3) == (1, 4, 5)
    assert most_abundant(counts, 3) == (2, 0, 3)
    assert most_abundant(counts, 2) == (2, 0)
    assert most_abundant(counts, 6) == (2, 0, 3, 5)  # a class that is not there is never shared
    assert most_abundant(counts, 3, fewest=6) == (2,)
    assert most_abundant([0, 0], 1) == ()


TABLE = {"a": [0, 1, 2], "b": [3, 4, 5], "c": [2, 3, 4], "d": []}


@pytest.mark.parametrize(
    ("site", "scarce", "helper"),
    [
        ("e", (3, 4, 9), "b"),  # b and c share two: the first one's stands
        ("e", (2, 3, 4), "c"),  # c three, b two, a one
        ("c", (2, 3, 4), "b"),  # c would be best, and never helps itself
        ("e", (7, 8, 9), None),  # every intersection is empty
        ("a", (0, 1, 2), "c"),
        ("e", (), None),
    ],
)
def test_the_matching_on_a_small_table(
    site: str, scarce: tuple[int, ...], helper: str | None
) -> None:
    assert best_match(site, scarce, TABLE) == helper


@pytest.mark.extended
@given(
    st.sets(st.integers(0, 9)),
    st.dictionaries(st.text("abc", min_size=1, max_size=2), st.sets(st.integers(0, 9)), max_size=6),
)
def test_no_site_would_have_been_a_better_match(
    scarce: set[int], abundant: dict[str, set[int]]
) -> None:
    found = best_match("a", scarce, abundant)
    others = {j: len(scarce & classes) for j, classes in abundant.items() if j != "a"}
    best = max(others.values(), default=0)
    assert (found is None) == (best == 0)
    if found is not None:
        assert found == next(j for j, n in others.items() if n == best)


def test_a_mean_is_taken_dimension_by_dimension() -> None:
    """Class 2: (1, 10) and (3, 30) give (2, 20); class 0: (5, 7) alone. Not one scalar for all dimensions."""
    codes = torch.tensor([[1.0, 10.0], [5.0, 7.0], [3.0, 30.0], [9.0, 9.0]])
    found = mean_codes(codes, torch.tensor([2, 0, 2, 1]), [2, 0])
    assert found.tolist() == [[2.0, 20.0], [5.0, 7.0]]


def test_what_is_released_of_codes_is_their_mean_each_cut_to_length() -> None:
    """Class 4: (.6, .8) at C = .5 is (.3, .4), and (.3, .4) stays; class 1: a code of no numbers counts as 0."""
    codes = torch.tensor([[0.6, 0.8], [0.3, 0.4], [math.nan, 1.0], [0.0, 0.2]])
    labels, still = torch.tensor([4, 4, 1, 1]), Gaussian(1.0, 1.0, torch.zeros)
    found = still.released(mean_steps(codes, labels, [4, 1], 0.5, still))
    torch.testing.assert_close(found.float(), torch.tensor([[0.3, 0.4], [0.0, 0.35]]) * 1.0)


class Counted:
    """Copies 0, 1, 2, ... in the order of the draws, and how many were asked for at a time."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.drawn = 0
        self.asked: list[int] = []

    def __call__(self, rows: Tensor) -> Tensor:
        self.asked += [len(rows)] if len(rows) else []
        start, self.drawn = self.drawn, self.drawn + len(rows)
        return torch.arange(start, self.drawn).float()[:, None].expand(-1, self.dimension)


def test_copies_are_drawn_until_the_quota_of_each_class_is_accepted() -> None:
    """Class 7 takes all, class 3 every other one: it alone is drawn for again, and gets 4, 6 and 8 of the second pass.

    First pass: copies 0 to 2 for class 7, 3 to 5 for class 3, of which 4 is even; second: 6 to 8 for class 3.
    """

    def accepts(copies: Tensor, labels: Tensor) -> Tensor:
        return (labels == 7) | (copies[:, 0] % 2 == 0)

    drawn = Counted(1)
    copies, labels = accepted_copies(drawn, torch.tensor([7, 3]), accepts, quota=3, max_draws=30)
    assert copies.flatten().tolist() == [0, 1, 2, 4, 6, 8]
    assert labels.tolist() == [7, 7, 7, 3, 3, 3]
    assert drawn.asked == [6, 3]


def test_a_class_that_is_never_accepted_is_left_short_and_the_draws_end() -> None:
    drawn = Counted(4)

    def accepts(copies: Tensor, labels: Tensor) -> Tensor:
        return labels == 0

    copies, labels = accepted_copies(drawn, torch.tensor([0, 1]), accepts, quota=4, max_draws=10)
    assert copies.shape == (4, 4)
    assert labels.tolist() == [0] * 4
    assert drawn.drawn == 4 + 10  # 4 for class 0; 4, 4 and the 2 that are left for class 1


def test_no_class_gives_no_copies() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    found = accepted_copies(Counted(5), none, lambda c, y: y == y, 3, 9)
    assert found[0].shape == (0, 5)
    assert found[1].shape == (0,)


def test_the_divergence_is_that_of_torchs_normals_summed_over_dimensions() -> None:
    generator = torch.Generator().manual_seed(3)
    mu, log_variance = torch.randn(2, 4, 6, generator=generator, dtype=torch.float64)
    q = torch.distributions.Normal(mu, torch.exp(0.5 * log_variance))
    p = torch.distributions.Normal(torch.zeros_like(mu), torch.ones_like(mu))
    expected = torch.distributions.kl_divergence(q, p).sum(1)
    assert torch.allclose(kl_to_prior(mu, log_variance), expected, rtol=1e-12)


def test_the_loss_by_hand() -> None:
    """mu 0.5, sigma^2 e: KL = (0.25 + e - 1 - 1) / 2, once a dimension; images 0 and 2 against 1: 2, a mean of 1."""
    mu, log_variance = torch.full((1, 2), 0.5), torch.ones(1, 2)
    drawn, x = torch.tensor([[[[0.0, 2.0]]]]), torch.ones(1, 1, 1, 2)
    for error, squared in (("sum", 2), ("mean", 1)):
        for kl, dimensions in (("sum", 2), ("mean", 1)):
            found = auto_encoding_loss(mu, log_variance, drawn, x, error, kl)
            expected = dimensions * (0.25 + math.e - 2) / 2 + squared
            assert float(found) == pytest.approx(expected, rel=1e-6)


def test_sampling_lets_gradients_through_to_both() -> None:
    """z = mu + e^(v/2) n: dz/dmu = 1, dz/dv = e^(v/2) n / 2."""
    mu = torch.zeros(1, 1, requires_grad=True)
    v = torch.full((1, 1), 2.0, requires_grad=True)
    sampled(mu, v, torch.full((1, 1), 3.0)).backward()  # type: ignore[no-untyped-call]
    assert mu.grad is not None
    assert v.grad is not None
    assert float(mu.grad) == 1.0
    assert float(v.grad) == pytest.approx(1.5 * math.e)
