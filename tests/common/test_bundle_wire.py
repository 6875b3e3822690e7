"""A bundle: each part by its own rules, and nothing that is not expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from common.errors import PayloadError
from common.wire.bundle import Bundle, BundleSpec
from common.wire.images import SyntheticImages, SyntheticImagesSpec
from common.wire.weights import Weights, WeightsSpec

SPEC = WeightsSpec(("a", "b"), ((2,), (3, 1)), (torch.float32, torch.float32), ("a", "b"))
PICTURES = SyntheticImagesSpec((1, 2, 2), 3, 2)
BOTH = BundleSpec({"weights": SPEC, "images": PICTURES}, optional=frozenset({"images"}))


def weights() -> Weights:
    return Weights({"a": torch.tensor([1.0, -2.0]), "b": torch.ones(3, 1)})


def images() -> SyntheticImages:
    return SyntheticImages(torch.rand(3, 1, 2, 2), torch.tensor([0, 0, 2]))


def test_an_optional_part_may_be_missing_and_another_may_not() -> None:
    assert list(BOTH.decode(Bundle({"weights": weights()}).encode()).parts) == ["weights"]
    with pytest.raises(PayloadError, match="holds images where weights, images were expected"):
        BOTH.decode(Bundle({"images": images()}).encode())
    with pytest.raises(PayloadError, match="holds weights, x where"):
        BOTH.decode(Bundle({"weights": weights(), "x": images()}).encode())
    with pytest.raises(PayloadError, match="holds images, weights where"):
        BOTH.decode(Bundle({"images": images(), "weights": weights()}).encode())


def test_a_part_that_is_wrong_is_named() -> None:
    bad = Weights({"a": torch.tensor([1.0, float("nan")]), "b": torch.ones(3, 1)})
    with pytest.raises(PayloadError, match="its part 'weights': the weight 'a' holds 1 of 2"):
        BOTH.decode(Bundle({"weights": bad}).encode())


@pytest.mark.parametrize(
    "parts",
    [
        None,
        7,
        [["weights"]],
        [["weights", "x"]],
        [["weights", -1], ["images", 4]],
        [["weights", 2]],
        [["weights", 10**9]],
        [["weights", float("inf")]],
        [["weights", 3], ["weights", 0]],
    ],
)
def test_a_header_that_lies_about_its_parts_is_refused(parts: Any) -> None:
    from common.wire.frame import frame

    arrays: list[np.ndarray[Any, Any]] = weights().encode()
    with pytest.raises(PayloadError):
        BOTH.decode([frame("bundle", {"parts": parts}, [])[0], *arrays])


def test_names_within_a_state() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    spec, state = WeightsSpec.of(model), Weights.of(model)
    assert spec.parameters.names == ("0.weight", "0.bias", "1.weight", "1.bias")
    part = state.only(spec.only(["1.bias", "1.running_mean"]))
    assert list(part.tensors) == ["1.bias", "1.running_mean"]
    other = Weights({"1.bias": torch.full((3,), 7.0)})
    laid = other.over(state)
    assert torch.equal(laid.tensors["1.bias"], torch.full((3,), 7.0))
    assert laid.tensors["0.weight"] is state.tensors["0.weight"]
    assert list(laid.tensors) == list(state.tensors)
    assert all(not t.any() for t in spec.parameters.zeros().tensors.values())
