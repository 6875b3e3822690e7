"""Named tensors on their way: what arrives is what was sent, and nothing beside what the spec states gets in."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tampering import with_header

from common.errors import PayloadError
from common.wire import npy
from common.wire.form import DTYPES, TensorSpec
from common.wire.tensors import Tensors, TensorsSpec

SPEC = TensorsSpec(
    {
        "means": TensorSpec((2, 3), -4, 4),
        "held": TensorSpec((2,), 0, 1, torch.bool),
        "size": TensorSpec((), 1, 9, torch.int64),
    }
)


def made(**other: torch.Tensor) -> Tensors:
    mine = {
        "means": torch.arange(6.0).reshape(2, 3) - 2,
        "held": torch.tensor([True, False]),
        "size": torch.tensor(5),
    }
    return Tensors({**mine, **other})


@given(
    shape=st.lists(st.integers(0, 4), max_size=3).map(tuple),
    dtype=st.sampled_from(DTYPES),
)
def test_they_arrive_to_the_bit(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    sent = Tensors({"a": torch.randn(shape).abs().to(dtype), "b": torch.ones(shape, dtype=dtype)})
    spec = TensorsSpec({name: TensorSpec(shape, 0, 100, dtype) for name in "ab"})
    arrays = sent.encode()
    got = spec.decode(arrays)
    assert all(torch.equal(got[n], sent[n]) and got[n].dtype == dtype for n in "ab")
    assert list(got.tensors) == ["a", "b"]
    assert got.floats == (2 * math.prod(shape) if dtype.is_floating_point else 0)
    assert sum(len(npy.write(array)) for array in arrays) <= spec.max_bytes


def spoiled(place: int, array: Any) -> Any:
    return lambda arrays: [*arrays[:place], array, *arrays[place + 1 :]]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda a: with_header(a, names="means,held"), "means,held,size was expected"),
        (spoiled(1, np.full((2, 3), 4.1, np.float32)), "means holds 4.1 where -4 to 4"),
        (spoiled(3, np.array(0)), "size holds 0 where 1 to 9"),
        (spoiled(3, np.array(2**62)), "size holds 4.6"),
        (spoiled(3, np.array(True)), "size is bool"),
    ],
)
def test_what_is_not_as_stated_is_refused(spoil: Any, said: str) -> None:
    with pytest.raises(PayloadError, match=said):
        SPEC.decode(spoil(made().encode()))


def test_a_byte_that_is_no_truth_value_is_one_afterwards() -> None:
    """NumPy takes byte 2 for a bool: as such it would equal neither True nor False."""
    arrays = made().encode()
    arrays[2] = np.array([2, 0], np.uint8).view(bool)
    held = SPEC.decode(arrays)["held"]
    assert held.view(torch.uint8).tolist() == [1, 0]


def test_a_value_at_its_bound_is_within_it_whatever_the_dtype_makes_of_the_bound() -> None:
    """0.1 is 0.1000000015 in float32 and 0.09998 in float16; an honest site cuts there."""
    for dtype in (torch.float32, torch.float16):
        at = Tensors({"x": torch.tensor([0.1, -0.1], dtype=dtype)})
        TensorsSpec({"x": TensorSpec((2,), -0.1, 0.1, dtype)}).decode(at.encode())


@pytest.mark.parametrize(
    "form", [((2,), 3, 1), ((-1,), 0, 1), ((2,), math.nan, 1), ((2,), 0, 1, torch.complex64)]
)
def test_a_form_that_nothing_has_is_a_mistake_told_at_once(form: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"no tensor is like this|sent as float32"):
        TensorSpec(*form)


# ---- a first dimension that varies --------------------------------------------------------------------

ROWS = TensorsSpec(
    {
        "points": TensorSpec((4, 2), -1, 1, varies=True),
        "of": TensorSpec((4,), 0, 9, torch.int64, varies=True),
        "size": TensorSpec((), 1, 9, torch.int64),
    }
)


def rows(n: int, m: int | None = None) -> Tensors:
    points, of = torch.full((n, 2), 0.5), torch.arange(n if m is None else m)
    return Tensors({"points": points, "of": of, "size": torch.tensor(5)})


@pytest.mark.parametrize("n", range(5))
def test_as_many_rows_come_as_were_sent(n: int) -> None:
    arrays = rows(n).encode()
    got = ROWS.decode(arrays)
    assert [tuple(got[name].shape) for name in ROWS.tensors] == [(n, 2), (n,), ()]
    assert sum(len(npy.write(array)) for array in arrays) <= ROWS.max_bytes


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (rows(5), r"points is float32 of shape \(5, 2\) where .* \(n, 2\), n at most 4, was"),
        (rows(3, 2), r"of is int64 of shape \(2,\) where int64 of shape \(3,\)"),
        (rows(2, 3), r"of is int64 of shape \(3,\) where int64 of shape \(2,\)"),
        (Tensors({**rows(3).tensors, "points": torch.zeros(3, 3)}), r"shape \(n, 2\), n at most 4"),
        (Tensors({**rows(3).tensors, "points": torch.zeros(3)}), r"shape \(n, 2\), n at most 4"),
        (Tensors({**rows(3).tensors, "points": torch.tensor(0.0)}), r"shape \(n, 2\), n at most 4"),
        (
            Tensors({**rows(3).tensors, "size": torch.ones(3).long()}),
            r"size is int64 of shape \(3,\)",
        ),
        (
            Tensors({**rows(3).tensors, "points": torch.full((3, 2), 2.0)}),
            "points holds 2 where -1",
        ),
    ],
)
def test_other_rows_than_stated_are_refused(sent: Tensors, said: str) -> None:
    with pytest.raises(PayloadError, match=said):
        ROWS.decode(sent.encode())


def test_what_does_not_go_together_is_refused_as_the_form_says() -> None:
    def ascending(found: Tensors) -> None:
        if not bool((found["of"].diff() > 0).all()):
            raise PayloadError("they do not ascend")

    spec = TensorsSpec(ROWS.tensors, require=ascending)
    assert len(spec.decode(rows(3).encode())["of"]) == 3
    with pytest.raises(PayloadError, match="they do not ascend"):
        spec.decode(Tensors({**rows(2).tensors, "of": torch.tensor([2, 1])}).encode())


def test_nothing_varies_without_a_dimension() -> None:
    with pytest.raises(ValueError, match="no tensor is like this"):
        TensorSpec((), 0, 1, varies=True)
