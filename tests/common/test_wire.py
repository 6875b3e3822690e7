"""What travels: payloads survive the way, and nothing that is not as expected gets in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.errors import PayloadError
from common.models import build
from common.wire.frame import unframe
from common.wire.images import SyntheticImages, SyntheticImagesSpec
from common.wire.weights import Weights, WeightsSpec

MODEL = build("convnet", (1, 8, 8), 10, depth=1, width=4)
SPEC = WeightsSpec.of(MODEL)
IMAGES = SyntheticImagesSpec(shape=(3, 4, 5), classes=7, ipc=4)


def images(n: int = 6, codec: str = "float32") -> SyntheticImages:
    rng = torch.Generator().manual_seed(1)
    return SyntheticImages(
        torch.randn(n, 3, 4, 5, generator=rng), torch.randint(0, 7, (n,), generator=rng), codec
    )


def test_weights_at_an_odd_place_in_what_arrived_are_read_from_an_even_one() -> None:
    def moved(array: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        raw = b"\0" * 3 + array.tobytes()
        return np.ndarray(array.shape, array.dtype, raw, 3)

    head, *body = Weights.of(MODEL).encode()
    got = SPEC.decode([head, *map(moved, body)]).read_only
    for name, value in MODEL.state_dict().items():
        assert torch.equal(got[name], value)
        assert got[name].data_ptr() % value.element_size() == 0


def test_who_changes_a_header_that_arrived_changes_it_for_nobody_else() -> None:
    arrays = Weights.of(MODEL).encode()
    header, _ = unframe("weights", arrays)
    header.clear()
    assert unframe("weights", arrays)[0]["kind"] == "weights"


def test_half_precision_weights_halve_the_bytes_and_round_once() -> None:
    full, half = Weights.of(MODEL), Weights.of(MODEL, "float16")
    sizes = [sum(a.nbytes for a in w.encode()[1:]) for w in (full, half)]
    assert sizes[0] == 2 * sizes[1]
    got = SPEC.decode(half.encode())
    for name, tensor in MODEL.state_dict().items():
        assert got.tensors[name].dtype == tensor.dtype
        assert torch.equal(got.tensors[name], tensor.half().float())


def test_a_scalar_does_not_pass_for_a_shape_it_would_broadcast_to() -> None:
    spec = WeightsSpec(("w",), ((64,),), (torch.float32,))
    with pytest.raises(PayloadError, match="of shape"):
        spec.decode(Weights({"w": torch.zeros(64, 1)}).encode())


@given(st.floats(-50, 50), st.floats(1e-3, 100))
def test_a_byte_a_value_is_wrong_by_at_most_half_a_step(low: float, spread: float) -> None:
    base = images()
    sent = SyntheticImages(base.images.sigmoid() * spread + low, base.labels, "uint8")
    got = IMAGES.decode(sent.encode())
    for c in range(3):
        channel = sent.images[:, c]
        step = (channel.max() - channel.min()) / 255
        slack = 1e-6 * (abs(low) + spread)
        assert (got.images[:, c] - channel).abs().max() <= step / 2 + slack


def test_images_of_one_value_survive_a_byte_a_value() -> None:
    flat = SyntheticImages(torch.full((2, 3, 4, 5), 0.25), torch.tensor([0, 6]), "uint8")
    got = IMAGES.decode(flat.encode())
    assert torch.equal(got.images, flat.images)


def test_codecs_cost_what_they_say() -> None:
    sizes = [images(codec=c).encode()[1].nbytes for c in ("float32", "float16", "uint8")]
    assert sizes == [4 * 360, 2 * 360, 360]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda a: [a[0], a[1], a[2].astype(np.int64) + 7], "labels holds 9 where 0 to 6"),
        (lambda a: [a[0], a[1], a[2].astype(np.int64) - 7], "labels holds -7"),
        (lambda a: [a[0], a[1][:0], a[2][:0]], "no image"),
        (lambda a: [a[0], np.tile(a[1], (9, 1, 1, 1)), np.tile(a[2], 9)], "n at most 28"),
        (lambda a: [a[0], a[1], np.full_like(a[2], 3)], "6 images of one class"),
    ],
)
def test_damaged_images_are_refused_by_name(damage, said) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PayloadError, match=said):
        IMAGES.decode(damage(images().encode()))
