"""The dSprites that tests draw: areas by closed forms, turned and moved as said, and the file."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sprites import (
    ELLIPSE,
    HALF_SIDE,
    HEART,
    MARGIN,
    NAMES,
    SEMI_AXES,
    SIZES,
    SQUARE,
    UNIT,
    sprites,
    values,
    write_dsprites,
)

#: of (a^2 + b^2 - 1)^3 = a^2 b^3
HEART_AREA = 3.66197

AREAS = {
    SQUARE: (2 * HALF_SIDE) ** 2,
    ELLIPSE: math.pi * SEMI_AXES[0] * SEMI_AXES[1],
    HEART: HEART_AREA * UNIT**2,
}


@settings(deadline=None, max_examples=30)  # a busy machine is no failure
@given(
    st.sampled_from([SQUARE, ELLIPSE, HEART]),
    st.floats(0.5, 1),
    st.floats(0, 2 * math.pi),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_a_sprites_area_is_its_formulas_however_it_is_turned(
    shape: int, scale: float, turn: float, x: float, y: float
) -> None:
    """To half a pixel for each pixel of the outline, about as long as a side: that much where it is straight."""
    (image,) = sprites(shape, scale, turn, x, y, side=256)
    expected = AREAS[shape] * (256 * scale) ** 2
    assert int(image.sum()) == pytest.approx(expected, abs=0.5 * 256 * scale + 1)
    assert not image[[0, -1]].any()
    assert not image[:, [0, -1]].any()  # whole, in every place


@pytest.mark.parametrize("shape", [SQUARE, ELLIPSE])
def test_a_sprites_middle_is_where_it_is_put(shape: int) -> None:
    x, y = np.array([0, 0.3, 1.0]), np.array([1.0, 0.9, 0])
    for image, at_x, at_y in zip(sprites(shape, 0.8, 0.7, x, y), x, y, strict=True):
        rows, columns = np.nonzero(image)
        assert (columns.mean() + 0.5) / 64 == pytest.approx(MARGIN + 0.6 * at_x, abs=0.5 / 64)
        assert (rows.mean() + 0.5) / 64 == pytest.approx(MARGIN + 0.6 * at_y, abs=0.5 / 64)


def test_a_quarter_turn_turns_the_image() -> None:
    for shape in (SQUARE, ELLIPSE, HEART):
        upright, turned = sprites(shape, 0.93, [0.2, 0.2 + math.pi / 2], 0.5, 0.5)
        assert np.array_equal(np.rot90(upright), turned)
    lying, standing = sprites(ELLIPSE, 1, [0, math.pi / 2], 0.5, 0.5)
    assert np.ptp(np.nonzero(lying)[1]) > 1.8 * np.ptp(np.nonzero(lying)[0])
    assert np.ptp(np.nonzero(standing)[0]) > 1.8 * np.ptp(np.nonzero(standing)[1])


def test_the_shapes_are_what_they_are_called() -> None:
    """A heart is symmetric left to right and not top to bottom, where it has two lobes; the others are in both ways."""
    square, ellipse, heart = sprites([SQUARE, ELLIPSE, HEART], 1, 0, 0.5, 0.5)
    for image in (square, ellipse, heart):
        assert np.array_equal(image, image[:, ::-1])
        assert np.array_equal(image, image[::-1]) == (image is not heart)
    assert square[:, 32].sum() == square[:, 25].sum() == 16
    first = heart[np.nonzero(heart)[0].min()]
    assert np.flatnonzero(np.diff(np.flatnonzero(first)) > 1).size == 1


def test_a_part_of_the_grid_is_written_as_the_published_file_is(tmp_path: Path) -> None:
    path = tmp_path / "dsprites.npz"
    written = write_dsprites(
        path, shapes=[0, 2], scales=[0, 5], orientations=[3], xs=range(0, 32, 8), ys=[1, 31]
    )
    with np.load(path, allow_pickle=False) as file:
        found = {name: file[name] for name in file.files}
    assert written == 2 * 2 * 4 * 2
    assert found["imgs"].shape == (written, 64, 64)
    assert found["imgs"].dtype == np.uint8
    assert set(np.unique(found["imgs"])) == {0, 1}
    classes, latents = found["latents_classes"], found["latents_values"]
    assert classes.dtype == np.int64
    assert latents.dtype == np.float64
    assert classes[0].tolist() == [0, 0, 0, 3, 0, 1]
    assert classes[-1].tolist() == [0, 2, 5, 3, 24, 31]
    assert latents[-1].tolist() == pytest.approx([1, 3, 1, 2 * math.pi * 3 / 39, 24 / 31, 1])
    assert len(np.unique(classes, axis=0)) == written
    (again,) = sprites(2, 1, 2 * math.pi * 3 / 39, 24 / 31, 1)
    assert np.array_equal(found["imgs"][-1], again)
    assert tuple(found["latents_names"]) == NAMES
    assert tuple(found["latents_sizes"]) == SIZES == tuple(map(len, values()))
