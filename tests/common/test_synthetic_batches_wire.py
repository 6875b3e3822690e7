"""Synthetic batches on their way: what arrives is what was sent, and nothing that is not as expected gets in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tampering import Damage, with_header

from common.errors import PayloadError
from common.specs.fedsynth import SyntheticBatches, SyntheticBatchesSpec

SOFT = SyntheticBatchesSpec(3, 2, (1, 4, 5), (), 7, trained=True, learned_step=True, max_step=10.0)
HARD = replace(SOFT, trained=False, learned_step=False)
TEXT = SyntheticBatchesSpec(
    2, 3, (10, 8), (10,), 2000, trained=False, learned_step=False, max_step=1.0
)


def made(spec: SyntheticBatchesSpec, codec: str = "float32", seed: int = 1) -> SyntheticBatches:
    rng = torch.Generator().manual_seed(seed)
    count = (spec.m, spec.b)
    inputs = torch.randn(*count, *spec.shape, generator=rng)
    if spec.trained:
        labels = torch.randn(*count, *spec.targets, spec.classes, generator=rng)
    else:
        labels = torch.randint(0, spec.classes, (*count, *spec.targets), generator=rng)
    step = torch.tensor(0.3) if spec.learned_step else None
    return SyntheticBatches(inputs, labels, step, codec)


def same(one: SyntheticBatches, other: SyntheticBatches) -> bool:
    steps = one.step_size, other.step_size
    return (
        torch.equal(one.inputs, other.inputs)
        and one.labels.dtype == other.labels.dtype
        and torch.equal(one.labels, other.labels)
        and (steps == (None, None) or torch.equal(*steps))  # type: ignore[arg-type]
    )


def test_labels_and_step_count_as_floats_only_where_they_are_trained() -> None:
    """3 batches of 2 images of 20 pixels are 120; 7 logits for each of the 6 images make 42 more, the step one."""
    assert made(SOFT).floats == 120 + 42 + 1
    assert made(HARD).floats == 120
    assert made(TEXT).floats == 2 * 3 * 10 * 8


def test_bytes_of_each_codec_by_hand() -> None:
    """120 pixels, 42 logits and a step: 4 bytes each; 2, 2, 4; 1, 2, 4. A class of 7 is a byte, of 2,000 two."""
    sizes = [
        [a.nbytes for a in made(SOFT, c).encode()[1:]] for c in ("float32", "float16", "uint8")
    ]
    assert sizes == [[480, 168, 4], [240, 84, 4], [120, 84, 4]]
    assert made(HARD).encode()[2].nbytes == 6
    assert made(TEXT).encode()[2].nbytes == 2 * 60


def test_half_precision_rounds_once_and_leaves_the_step_as_it_is() -> None:
    sent = made(SOFT, "float16")
    got = SOFT.decode(sent.encode())
    assert torch.equal(got.inputs, sent.inputs.half().float())
    assert torch.equal(got.labels, sent.labels.half().float())
    assert got.step_size is not None
    assert float(got.step_size) == float(np.float32(0.3))


@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(1e-3, 100)), min_size=3, max_size=3))
def test_a_byte_a_value_is_wrong_by_at_most_half_a_step_of_its_own_batch(
    ranges: list[tuple[float, float]],
) -> None:
    base = made(HARD)
    low, spread = (torch.tensor(x).view(3, 1, 1, 1, 1) for x in zip(*ranges, strict=True))
    sent = SyntheticBatches(base.inputs.sigmoid() * spread + low, base.labels, None, "uint8")
    got = HARD.decode(sent.encode())
    for i, (lo, wide) in enumerate(ranges):
        batch = sent.inputs[i]
        step = (batch.max() - batch.min()) / 255
        assert (got.inputs[i] - batch).abs().max() <= step / 2 + 1e-6 * (abs(lo) + wide)


def test_a_batch_of_small_values_is_not_coarsened_by_a_large_one() -> None:
    base = made(HARD)
    scale = torch.tensor([1e-4, 1.0, 1e4]).view(3, 1, 1, 1, 1)
    sent = SyntheticBatches(base.inputs * scale, base.labels, None, "uint8")
    relative = (HARD.decode(sent.encode()).inputs - sent.inputs).abs() / scale
    assert relative.max() < 0.02


@pytest.mark.parametrize("codec", ["float32", "float16", "uint8"])
def test_what_the_device_replays_is_what_the_server_reads(codec: str) -> None:
    sent = made(SOFT, codec)
    here = SOFT.decode(sent.encode())
    there = SOFT.decode(sent.encode())
    assert same(here, there)
    assert same(here, sent) == (codec == "float32")


def test_batches_of_one_value_survive_a_byte_a_value() -> None:
    flat = SyntheticBatches(torch.full((3, 2, 1, 4, 5), 0.25), made(HARD).labels, None, "uint8")
    assert torch.equal(HARD.decode(flat.encode()).inputs, flat.inputs)


DAMAGES: list[tuple[Damage, str]] = [
    (lambda a: [a[0], a[1], a[2][..., :6], a[3]], "label logits is float32 of shape"),
    (lambda a: [a[0], a[1], np.zeros((3, 2), np.uint8), a[3]], "label logits is uint8"),
    (
        lambda a: [*a[:3], np.array(0.0, np.float32)],
        "step size is 0 where one above 0 and at most 10",
    ),
    (lambda a: [*a[:3], np.array(-1.0, np.float32)], "step size holds -1 where 0 to 10"),
    (lambda a: [*a[:3], np.array(11.0, np.float32)], "step size holds 11"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGES)
def test_damaged_batches_are_refused_by_name(damage: Damage, said: str) -> None:
    with pytest.raises(PayloadError, match=said):
        SOFT.decode(damage(made(SOFT).encode()))


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (np.full((3, 2), 7, np.uint8), "labels holds 7 where 0 to 6"),
        (np.full((3, 2), -1, np.int64), "labels holds -1"),
        (np.zeros((3, 2), np.float32), "integers of shape"),
        (np.zeros((3, 2), np.bool_), "integers of shape"),
        (np.zeros((3,), np.uint8), "integers of shape"),
        (np.zeros((3, 2, 10), np.uint8), "integers of shape"),
    ],
)
def test_labels_that_are_no_classes_are_refused(labels: np.ndarray[Any, Any], said: str) -> None:
    arrays = made(HARD).encode()
    with pytest.raises(PayloadError, match=said):
        HARD.decode([*arrays[:2], labels])


def test_a_step_size_of_exactly_the_most_passes_whatever_float32_makes_of_it() -> None:
    most = 0.1  # its float32 is larger
    spec = replace(SOFT, max_step=most)
    sent = replace(made(SOFT), step_size=torch.tensor(5.0).clamp_max(most))
    assert same(spec.decode(sent.encode()), sent)


def test_a_step_size_that_nobody_asked_for_is_refused() -> None:
    with pytest.raises(PayloadError, match="3 arrays where 2"):
        replace(SOFT, learned_step=False).decode(made(SOFT).encode())


def test_a_range_beyond_float32_is_refused() -> None:
    arrays = made(HARD, "uint8").encode()
    with pytest.raises(PayloadError, match="not finite"):
        HARD.decode(with_header(arrays, range=[[0] * 3, [1e300] * 3]))


def test_logits_beyond_half_precision_do_not_leave() -> None:
    sent = made(SOFT, "uint8")
    sent.labels[0] = 1e5
    with pytest.raises(PayloadError, match="65504"):
        sent.encode()
