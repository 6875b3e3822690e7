"""The cryptography of a secret sum: shares, seals and masks do what they are for, and nothing else opens them."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from common.secret.crypto import (
    PRIME,
    SEALED_BYTES,
    SHARE_BYTES,
    KeyContext,
    add_mask,
    agreed_key,
    commitment,
    is_public_key,
    joined,
    new_secret,
    own_key,
    pair_is_minus,
    pair_key,
    public_of,
    seal,
    split,
    unseal,
    weights_of,
)

PLACE = KeyContext("record", 3, "attempt")
SECRETS = st.binary(min_size=32, max_size=32)


# ---- shares -----------------------------------------------------------------------------------------


def is_prime(number: int) -> bool:
    """Miller and Rabin's test with forty bases: it errs once in 4^40."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):
        power = pow(base, odd, number)
        squares = [pow(power, 2**i, number) for i in range(twos)]
        if power != 1 and number - 1 not in squares:
            return False
    return True


def test_shares_are_of_a_field_that_holds_every_secret() -> None:
    assert is_prime(PRIME)
    assert not is_prime(PRIME + 2)
    assert PRIME > 2**256
    assert PRIME.bit_length() <= 8 * SHARE_BYTES


@given(SECRETS, st.integers(1, 6), st.integers(0, 4), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_any_threshold_of_shares_gives_the_secret_back(
    secret: bytes, t: int, more: int, random: object
) -> None:
    shares = split(secret, t, t + more)
    places = tuple(random.sample(range(1, t + more + 1), t))  # type: ignore[attr-defined]
    assert joined([shares[at - 1] for at in places], weights_of(places)) == secret


def test_one_share_fewer_fits_every_secret_alike() -> None:
    """With t - 1 shares, each secret has one polynomial through them: none is likelier than another."""
    secret = new_secret()
    shares = split(secret, 3, 5)
    weights = weights_of((1, 2, 3))
    known = sum(int.from_bytes(shares[i]) * weights[i] for i in (0, 1))
    for guess in (secret, new_secret(), bytes(32)):
        last = (int.from_bytes(guess) - known) * pow(weights[2], -1, PRIME) % PRIME
        assert joined([*shares[:2], last.to_bytes(SHARE_BYTES)], weights) == guess


def test_each_time_the_shares_are_others() -> None:
    secret = new_secret()
    assert not {*split(secret, 2, 4)} & {*split(secret, 2, 4)}


def test_a_foreign_share_gives_another_secret_or_none() -> None:
    secret, foreign = new_secret(), split(new_secret(), 2, 3)[0]
    shares = split(secret, 2, 3)
    for places in combinations((1, 2, 3), 2):
        each = [shares[at - 1] for at in places]
        try:
            found = joined([foreign, each[1]], weights_of(places))
        except ValueError:
            continue
        assert found != secret


# ---- keys and seals ---------------------------------------------------------------------------------


@given(SECRETS, SECRETS)
@settings(deadline=None, max_examples=30)
def test_two_sites_agree_and_a_third_does_not(one: bytes, other: bytes) -> None:
    keys = [
        pair_key(one, public_of(other), PLACE, "a", "b"),
        pair_key(other, public_of(one), PLACE, "b", "a"),
    ]
    assert keys[0] == keys[1]
    assert pair_key(new_secret(), public_of(one), PLACE, "b", "a") != keys[0]


@pytest.mark.parametrize(
    "place",
    [
        KeyContext("other", 3, "attempt"),
        KeyContext("record", 4, "attempt"),
        KeyContext("record", 3, "other"),
    ],
)
def test_a_key_is_of_one_run_round_attempt_pair_and_purpose(place: KeyContext) -> None:
    private, public = new_secret(), public_of(new_secret())
    key = pair_key(private, public, PLACE, "a", "b")
    assert key != pair_key(private, public, place, "a", "b")
    assert key != pair_key(private, public, PLACE, "a", "c")
    assert key != agreed_key(private, public, PLACE.info("seal", "a", "b"))
    assert own_key(private, PLACE, "a") != own_key(private, place, "a")
    assert commitment(private, PLACE, "a") != commitment(private, place, "a")


def test_names_of_sites_cannot_run_into_each_other() -> None:
    assert PLACE.info("mask", "a", "b,c") != PLACE.info("mask", "a,b", "c")
    assert PLACE.info("mask", 'a","b') != PLACE.info("mask", "a", "b")


@pytest.mark.parametrize(
    "point",
    [
        bytes(32),
        bytes([1, *[0] * 31]),
        bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
        bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
        b"short",
    ],
)
def test_points_of_small_order_and_wrong_length_are_no_keys(point: bytes) -> None:
    assert is_public_key(public_of(new_secret()))
    assert not is_public_key(point)


def test_only_the_holder_opens_what_was_sealed_and_only_in_its_round() -> None:
    (one, other, third), data = (new_secret() for _ in range(3)), b"x" * 66
    sealed = seal(one, public_of(other), PLACE, "a", "b", data)
    assert len(sealed) == SEALED_BYTES
    assert data not in sealed
    assert unseal(other, public_of(one), PLACE, "a", "b", sealed) == data
    for private, place, sender, text in [
        (third, PLACE, "a", sealed),
        (other, KeyContext("record", 4, "attempt"), "a", sealed),
        (other, PLACE, "c", sealed),
        (other, PLACE, "a", sealed[:-1]),
        (other, PLACE, "a", bytes([sealed[0] ^ 1]) + sealed[1:]),
    ]:
        with pytest.raises(ValueError, match="was not sealed for this site"):
            unseal(private, public_of(one), place, sender, "b", text)


# ---- masks ------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40),
    st.sampled_from(["<u4", "<u8"]),
    st.integers(2, 5),
)
@settings(deadline=None, max_examples=40)
def test_masks_of_pairs_cancel_in_the_sum(numbers: list[int], dtype: str, sites: int) -> None:
    """Modulo 2^32 or 2^64, whatever the numbers; and no site's own vector is what it was."""
    plain = np.array(numbers, np.uint64).astype(dtype)
    names, privates = [f"site-{i}" for i in range(sites)], [new_secret() for _ in range(sites)]
    total = np.zeros(len(plain), dtype)
    for i, name in enumerate(names):
        vector = plain.copy()
        for j, other in enumerate(names):
            if i != j:
                key = pair_key(privates[i], public_of(privates[j]), PLACE, name, other)
                add_mask(vector, key, minus=pair_is_minus(name, other))
        total += vector
    assert (total == plain * np.array(sites, dtype)).all()


def test_a_long_mask_is_one_stream_and_taken_away_is_gone() -> None:
    key, words = new_secret(), np.zeros(200_001, "<u8")
    add_mask(words, key)
    assert len(np.unique(words)) == len(words)
    short = np.zeros(70_000, "<u8")
    add_mask(short, key)
    assert (short == words[:70_000]).all()
    add_mask(words, key, minus=True)
    assert not words.any()


@pytest.mark.extended
def test_what_the_server_sees_of_one_vector_is_uniform_in_each_byte() -> None:
    """10,000 rounds of the same vector: chi-square of the 256 values at each of 32 places, none of one in a million."""
    plain, rounds = np.arange(8, dtype="<u4"), 10_000
    seen = np.empty((rounds, 32), np.uint8)
    for i in range(rounds):
        vector, place = plain.copy(), KeyContext("record", i, "attempt")
        key = pair_key(new_secret(), public_of(new_secret()), place, "a", "b")
        add_mask(vector, key, minus=True)
        add_mask(vector, own_key(new_secret(), place, "a"))
        seen[i] = vector.view(np.uint8)
    assert len(np.unique(seen, axis=0)) == rounds
    for column in seen.T:
        counts = np.bincount(column, minlength=256)
        expected = rounds / 256
        assert chi2.sf(((counts - expected) ** 2 / expected).sum(), 255) > 1e-6


# ---- Flower's utilities -----------------------------------------------------------------------------


def test_nectar_uses_none_of_flowers_secure_aggregation() -> None:
    from places import ROOT

    for folder in ("common", "client_app", "strategies", "server_app", "nectar"):
        for path in (ROOT / folder).rglob("*.py"):
            assert "secure_aggregation" not in path.read_text(encoding="utf-8"), path
