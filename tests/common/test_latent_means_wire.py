"""Latent means and lists of classes on their way: what arrives is what was sent, and nothing else gets in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tampering import Damage

from common.errors import PayloadError
from common.wire.npy import MAX_ARRAY_HEADER_BYTES
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
    random=st.randoms(use_true_random=False),
)
def test_they_come_back_in_their_order(
    counts: dict[int, int], dimension: int, codec: str, random: Any
) -> None:
    labels = [label for label, count in counts.items() for _ in range(count)]
    random.shuffle(labels)
    sent = made(labels, dimension, codec)
    arrays = sent.encode()
    got = latent_means_spec(dimension, 300, 5, 4).decode(arrays)
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


DAMAGES: list[tuple[Damage, str]] = [
    (lambda a: [a[0], a[1][:, :3], a[2]], r"\(4, 3\) where float32 of shape \(n, 4\)"),
    (lambda a: [a[0], a[1][:3], a[2]], r"labels is uint8 of shape \(4,\) where integers of .*3,"),
    (lambda a: [a[0], a[1], np.full(4, 2**63 + 1, np.uint64)], "labels holds .* where 0 to 4"),
    (lambda a: [a[0], np.tile(a[1], (2, 1)), np.tile(a[2], 2)], r"\(8, 4\) where .*n at most 6"),
    (lambda a: [a[0], a[1], np.array([1, 1, 1, 1])], "4 latent means of one class .* at most 3"),
    (lambda a: [a[0], a[1], np.array([0, 1, 2, 2])], "of 3 classes were sent where at most 2"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGES)
def test_damaged_means_are_refused_by_name(damage: Damage, said: str) -> None:
    arrays = made([0, 0, 1, 1]).encode()
    assert SPEC.decode(arrays).floats == 16
    with pytest.raises(PayloadError, match=said):
        SPEC.decode(damage(arrays))


# ---- lists of classes ---------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 70_000), unique=True, max_size=6))
def test_a_list_comes_back_in_its_order(classes: list[int]) -> None:
    sent = class_list(classes)
    got = class_list_spec(70_001, 6).decode(sent.encode())
    assert got[CLASS_LIST].tolist() == classes
    assert got[CLASS_LIST].dtype == torch.int64
    assert got.floats == 0


LIST_DAMAGES: list[tuple[Damage, str]] = [
    (
        lambda a: [a[0], np.array([0, 1, 2, 3])],
        r"\(4,\) where integers of shape \(n,\), n at most 3",
    ),
    (lambda a: [a[0], np.array([0, 5])], "classes holds 5 where 0 to 4"),
    (lambda a: [a[0], np.array([-2])], "classes holds -2"),
    (lambda a: [a[0], np.array([2, 4, 2])], "names 2 twice"),
]


@pytest.mark.parametrize(("damage", "said"), LIST_DAMAGES)
def test_damaged_lists_are_refused_by_name(damage: Damage, said: str) -> None:
    arrays = class_list((4, 0, 2)).encode()
    assert LIST.decode(arrays)[CLASS_LIST].tolist() == [4, 0, 2]
    with pytest.raises(PayloadError, match=said):
        LIST.decode(damage(arrays))
