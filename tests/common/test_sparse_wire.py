"""Parts of updates on their way: random ones and the largest, at the same price."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tampering import Damage, with_header

from common.errors import PayloadError
from common.wire.sparse import (
    MaskedUpdate,
    MaskedUpdateSpec,
    TopKUpdate,
    TopKUpdateSpec,
    k_for,
    largest_rate,
    payload_bytes,
)
from synth.sparse_updates import as_bitmap, largest, mask, pack_places, places_bytes, unpack_places

MLP = 159_010  # numbers of a multilayer perceptron 784-200-10


def update(total: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(total, generator=torch.Generator().manual_seed(seed))


# ---- the mask -----------------------------------------------------------------------------------------


@given(st.integers(0, 2000), st.floats(1, 100), st.integers(0, 2**63 - 1))
def test_a_seed_gives_one_mask(total: int, rate: float, seed: int) -> None:
    one = mask(total, rate, seed)
    assert one.shape == (total,)
    assert torch.equal(one, mask(total, rate, seed))


def test_a_rate_of_one_keeps_everything() -> None:
    assert bool(mask(10**6, 1.0, 5).all())


@pytest.mark.parametrize("rate", [1.5, 7.8, 300.0])
def test_a_mask_keeps_its_share(rate: float) -> None:
    """The number kept is binomial: within 5 standard deviations of total / rate."""
    total, p = 10**6, 1 / rate
    assert abs(int(mask(total, rate, 11).sum()) - total * p) < 5 * math.sqrt(total * p * (1 - p))


def test_masks_of_two_seeds_are_independent() -> None:
    """Places in common: total p^2 of variance total p^2 (1 - p^2)."""
    total, p = 10**6, 0.25
    common = int((mask(total, 4.0, 1) & mask(total, 4.0, 2)).sum())
    assert abs(common - total * p**2) < 5 * math.sqrt(total * p**2 * (1 - p**2))


def test_what_masks_stand_for_has_the_update_as_its_mean() -> None:
    """A number u is decoded as r u with probability 1/r: mean u, variance (r - 1) u^2; 2,000 masks of 50 numbers."""
    rate, n, whole = 4.0, 2000, update(50)
    spec, total = MaskedUpdateSpec(50, rate), torch.zeros(50, dtype=torch.float64)
    for seed in range(n):
        sent = MaskedUpdate.of(whole, spec, seed)
        places, values = spec.decode(sent.encode()).coordinates(spec)
        total[places] += values
    sigma = whole.double().abs() * math.sqrt((rate - 1) / n)
    assert ((total / n - whole).abs() < 5 * sigma).all()


# ---- masked updates -----------------------------------------------------------------------------------


@given(
    st.integers(1, 500),
    st.floats(1, 50),
    st.integers(0, 2**63 - 1),
)
def test_a_masked_update_comes_back_at_its_places(total: int, rate: float, seed: int) -> None:
    whole, spec = update(total), MaskedUpdateSpec(total, rate)
    sent = MaskedUpdate.of(whole, spec, seed)
    got = spec.decode(sent.encode())
    assert (got.seed, got.floats) == (seed, len(sent.values))
    places, values = got.coordinates(spec)
    assert torch.equal(values, whole[places].double() * rate)
    assert len(places) == sent.floats


def test_a_half_masked_update_halves_the_bytes_and_rounds_once() -> None:
    whole, spec = update(1000), MaskedUpdateSpec(1000, 3.0)
    full, half = (MaskedUpdate.of(whole, spec, 1, c) for c in ("float32", "float16"))
    assert full.encode()[1].nbytes == 2 * half.encode()[1].nbytes == 4 * full.floats
    got = spec.decode(half.encode())
    assert torch.equal(got.values, full.values.half().float())


MASKED = MaskedUpdateSpec(300, 3.0)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda a: [a[0], np.full_like(a[1], 3e38)], "times the rate"),
        (lambda a: with_header(a, seed=2**63), "63 bits"),
        (lambda a: with_header(a, seed=-1), "63 bits"),
        (lambda a: with_header(a, seed=True), "63 bits"),
        (lambda a: with_header(a, seed=1.0), "63 bits"),
        (lambda a: with_header(a, seed=None), "63 bits"),
    ],
)
def test_damaged_masked_updates_are_refused_by_name(damage: Damage, said: str) -> None:
    arrays = MaskedUpdate.of(update(300), MASKED, 7).encode()
    with pytest.raises(PayloadError, match=said):
        MASKED.decode(damage(arrays))


def test_values_of_another_seed_are_as_good_as_never_as_many() -> None:
    spec = MaskedUpdateSpec(10_000, 3.0)
    arrays = MaskedUpdate.of(update(10_000), spec, 7).encode()
    with pytest.raises(PayloadError, match=r"values are \d+ where \d+ were expected"):
        spec.decode(with_header(arrays, seed=8))


def test_a_mask_that_keeps_nothing_is_an_empty_update() -> None:
    spec = MaskedUpdateSpec(1, 1000.0)
    seed = next(s for s in range(100) if not mask(1, 1000.0, s).any())
    sent = MaskedUpdate.of(update(1), spec, seed)
    assert spec.decode(sent.encode()).floats == 0


# ---- places and the largest ---------------------------------------------------------------------------

places_of = st.integers(1, 400).flatmap(
    lambda total: st.tuples(
        st.just(total), st.sets(st.integers(0, total - 1), min_size=1).map(sorted)
    )
)


@given(places_of)
def test_places_come_back_from_the_bytes_foretold(case: tuple[int, list[int]]) -> None:
    total, places = case
    code = pack_places(torch.tensor(places), total)
    assert len(code) == places_bytes(total, len(places))
    assert unpack_places(code, total, len(places)).tolist() == places


def test_places_by_hand() -> None:
    """Of 32 places 1, 12, 31: 3 low bits each, 001 100 111; highs 0, 1, 3 as 1 01 001; one bit to spare."""
    code = pack_places(torch.tensor([1, 12, 31]), 32)
    assert [f"{int(byte):08b}" for byte in code] == ["00110011", "11010010"]


def test_a_bitmap_by_hand() -> None:
    """Of 16 places eight, a bit each; Elias-Fano takes 8 + 8 + 7 bits, a byte more."""
    code = pack_places(torch.tensor([0, 1, 4, 5, 9, 11, 14, 15]), 16)
    assert [f"{int(byte):08b}" for byte in code] == ["11001100", "01010011"]


def test_the_code_of_the_places_is_the_smaller_one_on_either_side_of_the_crossing() -> None:
    """Of 8,000: at 2,000, a quarter, Elias-Fano takes 3 x 2,000 + 1,999 bits; at 2,001 2 x 2,001 + 3,999, one too many.

    A bitmap takes 1,000 bytes at any k, and Elias-Fano at all of them 8,000 + 7,999 bits.
    """
    assert [places_bytes(8000, k) for k in (1000, 2000, 2001, 6000, 8000)] == [
        625,
        1000,
        1000,
        1000,
        1000,
    ]
    assert [as_bitmap(8000, k) for k in (1, 2000, 2001, 8000)] == [False, False, True, True]
    for k in (1999, 2000, 2001, 2002, 7999, 8000):
        places = torch.randperm(8000, generator=torch.Generator().manual_seed(k))[:k].sort().values
        assert torch.equal(unpack_places(pack_places(places, 8000), 8000, k), places)


@pytest.mark.parametrize(
    ("rate", "codec", "k"),
    [
        (1.0, "float32", 7750),
        (1.3, "float32", 5903),
        (1.3, "float16", 5653),
        (3.5, "float32", 2035),
        (3.6, "float32", 1974),
    ],
)
def test_the_bytes_of_a_bitmap_leave_more_values(rate: float, codec: str, k: int) -> None:
    """k = (b 8,000 / rate - 1,000) / b with b bytes a value; at 3.6 Elias-Fano: 4k + (3k + 1,999) / 8 <= 8,888.8."""
    assert k_for(8000, rate, codec) == k


@pytest.mark.parametrize(
    ("rate", "k", "code"),
    [
        (3.6, 39247, "3ccbfc4c82da7975"),
        (3.9, 36141, "d0754b75fb5711c1"),
        (7.8, 17568, "ebed94b3984c214c"),
    ],
)
def test_where_elias_fano_is_the_smaller_one_nothing_has_changed(
    rate: float, k: int, code: str
) -> None:
    """What the release before the bitmap sent of a perceptron's update."""
    assert k_for(MLP, rate, "float32") == k
    sent = TopKUpdate.of(update(MLP), TopKUpdateSpec(MLP, k)).encode()
    assert hashlib.sha256(sent[2].tobytes()).hexdigest().startswith(code)


def test_places_cost_little_more_than_the_least_possible() -> None:
    """log2 of the binomial coefficient is what no code of k places of n can undercut in the mean."""
    n, k = MLP, 17_000
    least = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)
    assert least <= 8 * places_bytes(n, k) <= least + 0.7 * k


@given(st.integers(1, 60), st.integers(1, 60), st.binary(max_size=16))
def test_no_bytes_at_all_break_the_reading_of_places(total: int, k: int, code: bytes) -> None:
    k = min(k, total)
    size = places_bytes(total, k)
    tensor = torch.tensor(list(code.ljust(size, b"\0")[:size]), dtype=torch.uint8)
    try:
        places = unpack_places(tensor, total, k)
    except ValueError:
        return
    assert torch.equal(pack_places(places, total), tensor)
    assert places.tolist() == sorted(set(places.tolist()))
    assert 0 <= int(places[0]) <= int(places[-1]) < total


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40), st.data())
def test_the_largest_are_chosen_and_of_equals_the_first(numbers: list[int], data: Any) -> None:
    k = data.draw(st.integers(1, len(numbers)))
    expected = sorted(sorted(range(len(numbers)), key=lambda i: (-abs(numbers[i]), i))[:k])
    assert largest(torch.tensor(numbers, dtype=torch.float32), k).tolist() == expected


# ---- top-k updates ------------------------------------------------------------------------------------


@given(st.integers(1, 500), st.data())
def test_a_top_k_update_comes_back(total: int, data: Any) -> None:
    spec = TopKUpdateSpec(total, data.draw(st.integers(1, total)))
    whole = update(total)
    sent = TopKUpdate.of(whole, spec)
    got = spec.decode(sent.encode())
    assert torch.equal(got.indices, sent.indices)
    assert torch.equal(got.values, whole[got.indices])
    assert got.floats == spec.k
    left = torch.ones(total, dtype=torch.bool)
    left[got.indices] = False
    if left.any():
        assert whole[left].abs().max() <= got.values.abs().min()


TOP = TopKUpdateSpec(300, 20)
MOST = TopKUpdateSpec(300, 200)


def coded(places: list[int], total: int = 300) -> np.ndarray[Any, Any]:
    return np.asarray(pack_places(torch.tensor(places), total).numpy())


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda a: [a[0], a[1], np.zeros_like(a[2])], "0 places where 20"),
        (lambda a: [a[0], a[1], np.full_like(a[2], 255)], "places where 20"),
        (lambda a: [a[0], a[1], coded([*range(19), 18])], "do not ascend"),
        (lambda a: [a[0], a[1], coded([0, 2, 1, *range(3, 20)])], "do not ascend"),
        (lambda a: [a[0], a[1], coded([*range(19), 300])], "the place 300 where at most 299"),
        (lambda a: [a[0], a[1], coded([*range(19), 303])], "the place 303"),
    ],
)
def test_damaged_top_k_updates_are_refused_by_name(damage: Damage, said: str) -> None:
    arrays = TopKUpdate.of(update(300), TOP).encode()
    with pytest.raises(PayloadError, match=said):
        TOP.decode(damage(arrays))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda code: np.zeros_like(code), "0 places where 200"),
        (lambda code: np.full_like(code, 255), "304 places where 200"),
        (lambda code: np.append(code[:-1], code[-1] ^ 1), "201 places where 200"),
        (lambda code: np.packbits([0] * 104 + [1] * 200), "the place 303 where at most 299"),
    ],
)
def test_damaged_bitmaps_are_refused_by_name(damage: Any, said: str) -> None:
    arrays = TopKUpdate.of(update(300), MOST).encode()
    with pytest.raises(PayloadError, match=said):
        MOST.decode([arrays[0], arrays[1], damage(arrays[2])])


# ---- what it costs ------------------------------------------------------------------------------------

codecs = st.sampled_from(["float32", "float16"])


@given(st.integers(1, 5000), codecs)
def test_more_values_never_take_fewer_bytes(total: int, codec: str) -> None:
    sizes = [payload_bytes(total, k, codec) for k in range(1, min(total, 400) + 1)]
    assert sizes == sorted(sizes)


@given(st.integers(1, 10**7), st.floats(1, 10**6), codecs)
def test_k_is_the_largest_that_fits(total: int, rate: float, codec: str) -> None:
    k, room = k_for(total, rate, codec), {"float32": 4, "float16": 2}[codec] * total / rate
    assert 0 <= k <= total
    assert not k or payload_bytes(total, k, codec) <= room * (1 + 1e-9)
    assert k == total or payload_bytes(total, k + 1, codec) > room


@given(st.integers(1, 10**7), codecs)
def test_the_largest_rate_is_possible_as_it_is_printed_and_no_larger_one_is(
    total: int, codec: str
) -> None:
    most = largest_rate(total, codec)
    if most >= 1:
        assert k_for(total, float(f"{most:.3f}"), codec) >= 1
    assert k_for(total, max(1.0, most + 0.002), codec) == 0


@pytest.mark.parametrize("codec", ["float32", "float16"])
@pytest.mark.parametrize("rate", [3.9, 7.8, 15.6])
def test_top_k_and_masking_cost_the_same_at_one_rate(rate: float, codec: str) -> None:
    """What a mask keeps varies, at these rates by about 1 %: the mean of ten masks is compared."""
    whole, masked = update(MLP), MaskedUpdateSpec(MLP, rate)
    top = TopKUpdateSpec(MLP, k_for(MLP, rate, codec))
    sent = [MaskedUpdate.of(whole, masked, seed, codec).encode() for seed in range(10)]
    masking = sum(a.nbytes for arrays in sent for a in arrays) / 10
    largest_ones = sum(a.nbytes for a in TopKUpdate.of(whole, top, codec).encode())
    assert largest_ones == pytest.approx(masking, rel=0.02)
    assert largest_ones == pytest.approx(
        {"float32": 4, "float16": 2}[codec] * MLP / rate, rel=0.005
    )
