"""Images of one byte a value on the wire: what was sent arrives, and what cannot be is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from common.errors import PayloadError
from common.wire.images import Pixels, PixelsSpec

MEAN, STD = (0.25, 0.5), (0.5, 0.25)
SPEC = PixelsSpec((2, 3, 2), classes=4, most=5, mean=MEAN, std=STD)


def made(n: int = 5) -> Pixels:
    values = torch.arange(n * 12, dtype=torch.uint8).reshape(n, 2, 3, 2)
    return Pixels(values, torch.arange(n) % 4, MEAN, STD)


def test_images_arrive_to_the_bit_in_one_byte_a_value() -> None:
    sent = made()
    arrays = sent.encode()
    got = SPEC.decode(arrays)
    assert torch.equal(got.values, sent.values)
    assert torch.equal(got.labels, sent.labels)
    assert got.labels.dtype == torch.int64
    assert (got.mean, got.std) == (MEAN, STD)
    assert [array.nbytes for array in arrays[1:]] == [60, 5]  # 5 images of 12 values, 5 labels


def test_a_models_inputs_are_normalised_by_channel() -> None:
    """Byte 255 is 1: (1 - 0.25) / 0.5 = 1.5 in the first channel, (1 - 0.5) / 0.25 = 2 in the second; 0 is -0.5, -2."""
    both = torch.tensor([0, 255], dtype=torch.uint8).repeat(2, 1).reshape(1, 2, 1, 2)
    inputs = Pixels(both, torch.tensor([0]), MEAN, STD).examples
    assert_close(inputs, torch.tensor([[[[-0.5, 1.5]], [[-2.0, 2.0]]]]))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda a: [a[0], a[1], np.full(5, 4, np.uint8)], "0 to 3"),
        (lambda a: [a[0], a[1][:0], a[2][:0]], "no image"),
        (lambda a: [a[0], np.tile(a[1], (2, 1, 1, 1)), np.tile(a[2], 2)], "n at most 5"),
    ],
)
def test_images_that_are_not_as_agreed_are_refused(spoil, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PayloadError, match=said):
        SPEC.decode(spoil(made().encode()))
