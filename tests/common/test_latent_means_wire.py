"""Latent means and lists of classes on their way: what arrives is what was sent, and nothing else gets in."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from damaging import Damage, with_header
from hypothesis import given
from hypothesis import strategies as st

from common.errors import PayloadError
from common.wire.codec import MAX_ARRAY_HEADER_BYTES
from common.wire.tensors import (
    CLASS_LIST,
    LABELS,
    VECTORS,
    Tensors,
    class_list,
    class_list_spec,
    latent_means,
    latent_means_spec,
)

SPEC = latent_means_spec(dimension=4, classes=5, each=3, kinds=2)
LIST = class_list_spec(classes=5, most=3)


def made(labels: list[int], dimension: int = 4, codec: str = "float32") -> Tensors:
    rng = torch.Generator().manual_seed(len(labels))
    vectors = torch.randn(len(labels), dimension, generator=rng)
    return latent_means(vectors, torch.tensor(labels, dtype=torch.int64), codec)


@given(
    counts=st.dictionaries(st.integers(0, 299), st.integers(1, 5), max_size=4),
    dimension=st.integers(1, 40),
    codec=st.sampled_from(["float32", "float16"]),
    compression=st.sampled_from(["none", "zlib"]),
    random=st.randoms(use_true_random=False),
)
def test_they_come_back_in_their_order(
    counts: dict[int, int], dimension: int, codec: str, compression: str, random: Any
) -> None:
    labels = [label for label, count in counts.items() for _ in range(count)]
    random.shuffle(labels)
    sent = made(labels, dimension, codec)
    arrays = sent.encode(compression)
    got = Tensors.decode(arrays, latent_means_spec(dimension, 300, 5, 4))
    expected = sent[VECTORS].half().float() if codec == "float16" else sent[VECTORS]
    assert torch.equal(got[VECTORS], expected)
    assert torch.equal(got[LABELS], sent[LABELS])
    assert (got[VECTORS].dtype, got[LABELS].dtype) == (torch.float32, torch.int64)
    assert got.codec == codec
    assert got.floats == dimension * len(labels)


def test_bytes_by_hand() -> None:
    """Six vectors of 4: 4 or 2 bytes a component and one a label, which takes two from class 256 on."""
    six = [0, 0, 0, 3, 3, 3]
    assert [a.nbytes for a in made(six).encode()[1:]] == [96, 6]
    assert [a.nbytes for a in made(six, codec="float16").encode()[1:]] == [48, 6]
    assert made([256]).encode()[2].nbytes == 2


def test_the_most_that_may_come_is_what_is_made_room_for() -> None:
    """Three vectors of each of two classes, 4 x 4 bytes and a label of at most 8 each; three arrays' headers."""
    assert SPEC.max_bytes == 65_536 + 6 * 16 + 6 * 8 + 3 * MAX_ARRAY_HEADER_BYTES
    more = latent_means_spec(dimension=4, classes=5, each=3, kinds=9)
    assert more.tensors[VECTORS].shape == (15, 4)


def test_equal_vectors_compress() -> None:
    flat = latent_means(torch.full((6, 200), 0.5), torch.tensor([0, 0, 0, 3, 3, 3]))
    sizes = [sum(a.nbytes for a in flat.encode(how)) for how in ("none", "zlib")]
    assert sizes[1] < sizes[0] / 10
    assert torch.equal(
        Tensors.decode(flat.encode("zlib"), latent_means_spec(200, 5, each=3, kinds=2))[VECTORS],
        flat[VECTORS],
    )


DAMAGES: list[tuple[Damage, str]] = [
    (lambda a: a[:2], "'latent-means' holds 1 arrays where 2 were expected"),
    (lambda a: [*a, a[2]], "3 arrays where 2"),
    (lambda a: [a[0], a[1][:, :3], a[2]], r"\(4, 3\) where float32 of shape \(n, 4\)"),
    (lambda a: [a[0], a[1].reshape(2, 2, 4), a[2]], r"of shape \(2, 2, 4\) where"),
    (lambda a: [a[0], a[1].reshape(-1), a[2]], r"of shape \(16,\) where"),
    (lambda a: [a[0], a[1].astype(np.float64), a[2]], "is float64 of shape"),
    (lambda a: [a[0], a[1].astype(np.float16), a[2]], "is float16 of shape"),
    (lambda a: [a[0], a[1].astype(">f4"), a[2]], "byte order"),
    (lambda a: [a[0], np.full_like(a[1], np.nan), a[2]], "16 of 16 values that are not finite"),
    (lambda a: [a[0], np.full_like(a[1], -np.inf), a[2]], "not finite"),
    (lambda a: [a[0], a[1][:3], a[2]], r"labels is uint8 of shape \(4,\) where integers of .*3,"),
    (lambda a: [a[0], a[1], a[2].astype(np.float32)], "labels is float32"),
    (lambda a: [a[0], a[1], a[2].astype(np.bool_)], "labels is bool"),
    (lambda a: [a[0], a[1], a[2][:, None]], r"labels is uint8 of shape \(4, 1\)"),
    (lambda a: [a[0], a[1], np.full(4, 5, np.uint8)], "a label is 5 where 0 to 4 are allowed"),
    (lambda a: [a[0], a[1], np.array([-1, 0, 0, 1])], "a label is -1 where"),
    (lambda a: [a[0], a[1], np.full(4, 2**63 + 1, np.uint64)], "a label is 9223372036854775809"),
    (lambda a: [a[0], np.tile(a[1], (2, 1)), np.tile(a[2], 2)], r"\(8, 4\) where .*n at most 6"),
    (lambda a: [a[0], a[1], np.array([1, 1, 1, 1])], "4 latent means of one class .* at most 3"),
    (lambda a: [a[0], a[1], np.array([0, 1, 2, 2])], "of 3 classes were sent where at most 2"),
    (lambda a: with_header(a, codec="uint8"), "codec 'uint8', allowed are float32, float16"),
    (lambda a: with_header(a, kind="weights"), "'weights' where a 'latent-means' was expected"),
    (lambda a: with_header(a, version=99), "has version 99"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGES)
def test_damaged_means_are_refused_by_name(damage: Damage, said: str) -> None:
    arrays = made([0, 0, 1, 1]).encode()
    assert Tensors.decode(arrays, SPEC).floats == 16
    with pytest.raises(PayloadError, match=said):
        Tensors.decode(damage(arrays), SPEC)


def test_a_claim_of_a_terabyte_is_refused_before_it_is_expanded() -> None:
    arrays = latent_means(torch.zeros(6, 4), torch.tensor([0, 0, 0, 1, 1, 1])).encode("zlib")
    entries = json.loads(arrays[0].tobytes())["arrays"]
    claimed = with_header(arrays, arrays=[["float32", [2**36, 4]], *entries[1:]])
    with pytest.raises(PayloadError, match=r"\(68719476736, 4\) where .* at most 6"):
        Tensors.decode(claimed, SPEC)


@pytest.mark.parametrize("codec", ["float32", "float16"])
def test_means_that_are_not_finite_do_not_leave(codec: str) -> None:
    sent = made([0, 1], codec=codec)
    sent[VECTORS][1, 2] = math.nan
    with pytest.raises(PayloadError, match="the set of latent means holds 1 of 8 values"):
        sent.encode()


def test_means_beyond_half_precision_do_not_leave() -> None:
    with pytest.raises(PayloadError, match="65504"):
        latent_means(torch.full((1, 4), 1e5), torch.tensor([0]), "float16").encode()


# ---- lists of classes ---------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 70_000), unique=True, max_size=6), st.sampled_from(["none", "zlib"]))
def test_a_list_comes_back_in_its_order(classes: list[int], compression: str) -> None:
    sent = class_list(classes)
    got = Tensors.decode(sent.encode(compression), class_list_spec(70_001, 6))
    assert got[CLASS_LIST].tolist() == classes
    assert got[CLASS_LIST].dtype == torch.int64
    assert got.floats == 0


LIST_DAMAGES: list[tuple[Damage, str]] = [
    (lambda a: a[:1], "'class-list' holds 0 arrays where 1 were expected"),
    (lambda a: [*a, a[1]], "2 arrays where 1"),
    (
        lambda a: [a[0], np.array([0, 1, 2, 3])],
        r"\(4,\) where integers of shape \(n,\), n at most 3",
    ),
    (lambda a: [a[0], a[1][None]], r"is uint8 of shape \(1, 3\)"),
    (lambda a: [a[0], a[1].astype(np.float32)], "is float32"),
    (lambda a: [a[0], np.array([0, 5])], "a label is 5 where 0 to 4"),
    (lambda a: [a[0], np.array([-2])], "a label is -2"),
    (lambda a: [a[0], np.array([2, 4, 2])], "names 2 twice"),
    (lambda a: with_header(a, kind="weights"), "a 'class-list' was expected"),
]


@pytest.mark.parametrize(("damage", "said"), LIST_DAMAGES)
def test_damaged_lists_are_refused_by_name(damage: Damage, said: str) -> None:
    arrays = class_list((4, 0, 2)).encode()
    assert Tensors.decode(arrays, LIST)[CLASS_LIST].tolist() == [4, 0, 2]
    with pytest.raises(PayloadError, match=said):
        Tensors.decode(damage(arrays), LIST)
