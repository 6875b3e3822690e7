"""A site's part of a secret sum on its grid: the mean that comes back, lengths, weights, the modulus at its edge."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ConfigError, PayloadError
from common.secret.summand import SumForm
from common.wire.bundle import Bundle, BundleSpec
from common.wire.form import TensorSpec
from common.wire.tensors import Tensors, TensorsSpec
from common.wire.weights import Weights, WeightsSpec

SPEC = WeightsSpec(("a", "b"), ((2, 3), (4,)), (torch.float32,) * 2, ("a", "b"))


def weights(values: np.ndarray) -> Weights:
    flat = torch.from_numpy(np.asarray(values, np.float64)).float()
    return Weights({"a": flat[:6].view(2, 3), "b": flat[6:]})


def flat(payload: Weights) -> np.ndarray:
    return torch.cat([t.double().flatten() for t in payload.read_only.values()]).numpy()


@given(
    st.integers(0, 2**32),
    st.integers(1, 12),
    st.sampled_from([1, 7, 1000, 10_000_000]),
    st.floats(1e-3, 1e3),
)
@settings(deadline=None, max_examples=60)
def test_the_mean_is_within_half_a_level(seed: int, sites: int, most: int, clip: float) -> None:
    """Of the float mean of the clipped updates; at weight 1 the total is within sites / 2 levels of the float sum."""
    rng = np.random.default_rng(seed)
    form, base = SumForm(SPEC, sites, most, clip), weights(rng.normal(size=10))
    counts = rng.integers(1, most + 1, sites)
    words, exact = np.zeros(form.numbers, form.dtype), np.zeros(10)
    cut = 0
    for count in counts:
        ended = weights(flat(base) + rng.normal(size=10) * clip * rng.choice([0.01, 0.3, 2]))
        words += form.summand(ended, base, int(count))
        update = flat(ended) - flat(base)
        length = float(np.linalg.norm(update))
        cut += length > clip
        exact += count * update * min(1, clip / length)
    total = form.total(words, sites, base)
    assert (total.weight, total.shortened) == (counts.sum(), cut)
    levels = words.view(f"<i{form.bits // 8}")[:-2].astype(np.float64)
    assert np.abs(levels * form.step - exact).max() <= counts.sum() / 2 * form.step * (1 + 1e-6)
    assert np.allclose(
        flat(total.payload), flat(base) + exact / counts.sum(), rtol=1e-5, atol=form.step
    )


@pytest.mark.parametrize(
    ("sites", "most", "bits"),
    [(3, 1, 32), (1000, 1, 32), (10, 10_000_000, 64), (1000, 10_000_000, 64)],
)
def test_the_largest_total_that_there_can_be_has_room_and_one_more_site_has_not(
    sites: int, most: int, bits: int
) -> None:
    form, base = SumForm(SPEC, sites, most, 1.0), weights(np.zeros(10))
    assert form.bits == bits
    edge = np.zeros(10)
    edge[3] = -1.0  # all of the length in one number
    words = np.zeros(form.numbers, form.dtype)
    one = form.summand(weights(edge), base, most)
    for _ in range(sites):
        words += one
    total = form.total(words, sites, base)
    assert flat(total.payload)[3] == -1.0
    assert total.weight == sites * most
    largest = sites * most * form.most
    assert largest <= 2 ** (bits - 1) - 1 < 2 * largest or form.most == 2**32


def test_a_sum_without_room_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"no room for a total of 1000 sites .* lower federation.max_examples"
    ):
        SumForm(SPEC, 1000, 10**11, 1.0)


def test_running_statistics_are_refused() -> None:
    spec = WeightsSpec(("w", "mean"), ((2,), (2,)), (torch.float32,) * 2, ("w",))
    with pytest.raises(ConfigError, match=r"running statistics.*set model.norm=group"):
        SumForm(spec, 3, 1, 1.0)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_what_is_not_finite_is_not_added(number: float) -> None:
    ended = np.zeros(10)
    ended[0] = number
    with pytest.raises(PayloadError, match="not finite, and is not added"):
        SumForm(SPEC, 3, 1, 1.0).summand(weights(ended), weights(np.zeros(10)), 1)


def test_more_examples_than_a_site_may_have_are_not_added() -> None:
    with pytest.raises(
        PayloadError, match=r"has 11 examples where federation.max_examples allows 10"
    ):
        SumForm(SPEC, 3, 10, 1.0).summand(weights(np.ones(10)), weights(np.zeros(10)), 11)


def test_a_total_outside_of_what_sites_can_add_up_to_is_refused_unnamed() -> None:
    form, base = SumForm(SPEC, 3, 1, 1.0), weights(np.zeros(10))
    good = sum(form.summand(weights(np.full(10, 0.1)), base, 1) for _ in range(3))
    assert form.total(np.asarray(good), 3, base).weight == 3
    for place, value in [(0, 3 * form.most + 1), (-2, 4), (-2, 2), (-1, 4), (0, 2**31)]:
        bad = np.asarray(good).copy()
        bad[place] = value
        with pytest.raises(PayloadError, match=r"beyond what 3 sites .* unknown which"):
            form.total(bad, 3, base)


def test_a_bundle_has_updates_of_its_model_and_its_other_parts_as_they_are() -> None:
    spec = BundleSpec({"weights": SPEC, "control": SPEC})
    form, base = SumForm(spec, 4, 1, 10.0), weights(np.arange(10))
    words = np.zeros(form.numbers, form.dtype)
    for i in range(4):
        made = Bundle(
            {"weights": weights(np.arange(10) + i / 4), "control": weights(np.full(10, i / 8))}
        )
        words += form.summand(made, base, 1)
    total = form.total(words, 4, base).payload
    assert isinstance(total, Bundle)
    assert np.allclose(flat(total.part("weights", Weights)), np.arange(10) + 0.375, atol=1e-6)
    assert np.allclose(flat(total.part("control", Weights)), 0.1875, atol=1e-6)


def test_whole_numbers_are_added_as_they_are() -> None:
    spec = TensorsSpec({"levels": TensorSpec((8, 5), 0, 255, torch.uint8)})
    form = SumForm(spec, 3, 100, 1.0, largest=1 << 20)
    numbers = torch.tensor([-(1 << 20), 0, 7, 1 << 20, -1])
    made = Tensors({"levels": numbers.view(torch.uint8).view(-1, 8).mT.contiguous()})
    words = np.zeros(form.numbers, form.dtype)
    for _ in range(3):
        words += form.summand(made, None, 50)
    total = form.total(words, 3, weights(np.zeros(10)))
    assert total.weight == 150
    got = total.payload["levels"].mT.contiguous().view(torch.int64).flatten()  # type: ignore[index]
    assert got.tolist() == (3 * numbers).tolist()
