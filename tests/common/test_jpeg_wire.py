"""Images as one JPEG picture: what was sent arrives but for what JPEG loses, and nothing else gets in."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from spoilt_pictures import OF_COLOUR, SPOILT, opened, saved, with_sides
from tampering import with_header
from torch.testing import assert_close

from common.errors import PayloadError
from common.wire.coders import images_of, levels_of
from common.wire.image_codecs import is_picture
from common.wire.images import SyntheticImages, SyntheticImagesSpec
from common.wire.jpeg import Sheet

pytestmark = pytest.mark.promise(
    "What comes over the wire",
    "A picture that is not a plain JPEG of the expected sides reaches no decoder",
)

MEAN, STD = (0.5, 0.25, 0.1), (0.25, 0.5, 0.2)
SPEC = SyntheticImagesSpec((3, 12, 9), classes=4, ipc=3, mean=MEAN, std=STD)


def smooth(n: int, channels: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    """Return images of 4 x 4 bytes each, blown up: what JPEG keeps well."""
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.randint(0, 256, (n, channels, 4, 4), generator=rng).float()
    size = (height, width)
    return torch.nn.functional.interpolate(coarse, size, mode="bilinear").round().byte()


def sent(n: int = 8, codec: str = "jpeg:90") -> SyntheticImages:
    values = smooth(n, 3, 12, 9)
    return SyntheticImages(images_of(values, MEAN, STD), torch.arange(n) % 4, codec, MEAN, STD)


def decoded_by_hand(file: bytes, n: int, tile: tuple[int, int], sides: tuple[int, int]) -> list:  # type: ignore[type-arg]
    """Return the values of the images of a picture of one column, [H, W] or [H, W, C]."""
    picture = np.asarray(Image.open(io.BytesIO(file)))
    assert picture.shape[:2] == (n * tile[0], tile[1])
    return [picture[i * tile[0] :][: sides[0], : sides[1]] for i in range(n)]


# ---- the picture --------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_images_lie_below_one_another_and_each_is_filled_up_by_its_own_edge(channels: int) -> None:
    """Images of one value each come back to the bit: no block holds two, and a block of one value has one term."""
    values = torch.arange(10, 250, 60, dtype=torch.uint8)[:, None, None, None]
    images = values.expand(-1, channels, 12, 9).contiguous()
    sheet = Sheet.of(4, (channels, 12, 9))
    assert (sheet.width, sheet.height, sheet.columns) == (16, 4 * 16, 1)
    file = sheet.write(images, 95)
    for value, image in zip(
        values, decoded_by_hand(file.tobytes(), 4, (16, 16), (12, 9)), strict=True
    ):
        assert set(image.flatten().tolist()) == {int(value)}
    assert torch.equal(sheet.read(file), images)


def test_many_images_take_as_many_columns_as_a_file_has_room_for() -> None:
    sheet = Sheet.of(9000, (1, 8, 8))
    assert (sheet.columns, sheet.rows, sheet.height) == (2, 4500, 36_000)
    images = torch.arange(9000).remainder(256).byte()[:, None, None, None].expand(-1, 1, 8, 8)
    got = sheet.read(sheet.write(images.contiguous(), 95))
    assert torch.equal(got, images)


@pytest.mark.extended
@given(
    st.integers(1, 9),
    st.sampled_from([1, 3]),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(1, 95),
)
def test_whatever_the_images_their_file_is_read_again_and_no_larger_than_was_said(
    n: int, channels: int, height: int, width: int, quality: int
) -> None:
    rng = torch.Generator().manual_seed(n)
    images = torch.randint(0, 256, (n, channels, height, width), generator=rng).byte()
    sheet = Sheet.of(n, (channels, height, width))
    file = sheet.write(images, quality)
    assert len(file) <= sheet.max_bytes
    assert sheet.read(file).shape == images.shape


def test_a_large_picture_of_noise_is_written_at_any_quality() -> None:
    """Pillow's own buffer is too small for it."""
    images = torch.randint(0, 256, (500, 3, 32, 32), generator=torch.Generator().manual_seed(0))
    sheet = Sheet.of(500, (3, 32, 32))
    for quality in (90, 94, 95):
        file = sheet.write(images.byte(), quality)
        assert float((sheet.read(file).float() - images).square().mean().sqrt()) < 10


@pytest.mark.parametrize(
    ("count", "shape", "said"),
    [
        (1, (2, 8, 8), "one or three channels"),
        (1, (3, 8), "one or three channels"),
        (100, (3, 1024, 1024), "more than a JPEG file holds"),
        (1, (1, 8, 70_000), "more than a JPEG file holds"),
    ],
)
def test_what_is_no_picture_or_too_large_a_one_is_refused(
    count: int, shape: tuple[int, ...], said: str
) -> None:
    with pytest.raises(PayloadError, match=said):
        Sheet.of(count, shape)


# ---- as a payload -------------------------------------------------------------------------------------


def test_images_arrive_as_the_picture_shows_them() -> None:
    """By hand: Pillow's own reading of the file, cut apart, undone by mean and std."""
    payload = sent()
    arrays = payload.encode()
    got = SPEC.decode(arrays)
    file = payload.encode()[1].tobytes()
    shown = np.stack(decoded_by_hand(file, 8, (16, 16), (12, 9))).transpose(0, 3, 1, 2)
    mean, std = (np.array(v)[:, None, None] for v in (MEAN, STD))
    assert_close(
        got.images.double(), torch.from_numpy((shown / 255 - mean) / std), rtol=0, atol=1e-6
    )
    assert torch.equal(got.labels, payload.labels)
    assert got.codec == "jpeg:90"
    errors = (levels_of(got.images, MEAN, STD).float() - smooth(8, 3, 12, 9)).abs()
    assert errors.mean() < 8


def test_what_is_darker_than_black_or_brighter_than_white_is_cut() -> None:
    images = torch.tensor([-9.0, 9.0])[:, None, None, None].expand(2, 3, 12, 9)
    payload = SyntheticImages(images, torch.arange(2), "jpeg:95", MEAN, STD)
    got = SPEC.decode(payload.encode())
    assert levels_of(got.images, MEAN, STD).flatten(1).tolist() == [[0] * 324, [255] * 324]


def test_who_decodes_and_encodes_anew_sends_a_file_of_its_own() -> None:
    """Whatever else a file of a site's held, tables of its own for one, is not what others get."""
    payload = sent()
    arrays = payload.encode()
    foreign = saved(opened(arrays[1].tobytes()), quality=93, subsampling=0)
    got = SPEC.decode(with_file(arrays, foreign))
    again = got.encode()
    assert again[1].tobytes() != foreign
    assert_close(SPEC.decode(again).images, got.images, rtol=0, atol=0.4)


def test_soft_labels_come_along() -> None:
    spec = SyntheticImagesSpec((3, 12, 9), 4, 3, soft=True, mean=MEAN, std=STD)
    labels = torch.rand(8, 4).softmax(1)
    payload = SyntheticImages(sent().images, labels, "jpeg:60", MEAN, STD)
    assert torch.equal(spec.decode(payload.encode()).labels, labels)


def test_a_lower_quality_takes_fewer_bytes_than_a_byte_a_value() -> None:
    payload = SyntheticImages(
        images_of(smooth(100, 3, 32, 32), MEAN, STD), torch.zeros(100).long(), "uint8"
    )
    plain = payload.encode()[1].nbytes
    sizes = [
        SyntheticImages(payload.images, payload.labels, f"jpeg:{q}", MEAN, STD).encode()[1].nbytes
        for q in (90, 60, 30)
    ]
    assert plain > sizes[0] > sizes[1] > sizes[2]
    assert sizes[2] < plain / 15


@pytest.mark.parametrize("codec", ["jpeg:1", "jpeg:95"])
def test_a_quality_is_from_1_to_95(codec: str) -> None:
    assert is_picture(codec)


@pytest.mark.parametrize(
    "codec", ["jpeg:0", "jpeg:96", "jpeg:100", "jpeg:", "jpeg", "jpeg:6\n", "uint8:6", "", "png"]
)
def test_others_are_none(codec: str) -> None:
    assert not is_picture(codec)


def test_without_the_data_sets_constants_none_are_sent_or_taken() -> None:
    bare = SyntheticImages(sent().images, sent().labels, "jpeg:60")
    with pytest.raises(PayloadError, match="mean and std"):
        bare.encode()
    with pytest.raises(PayloadError, match="codec 'jpeg:90', allowed are float32"):
        SyntheticImagesSpec((3, 12, 9), 4, 3).decode(sent().encode())


# ---- what is refused ----------------------------------------------------------------------------------


def with_file(arrays: list, file: bytes) -> list:  # type: ignore[type-arg]
    return [arrays[0], np.frombuffer(file, np.uint8), *arrays[2:]]


@pytest.mark.parametrize("name", [*SPOILT, *OF_COLOUR])
def test_a_spoilt_picture_is_refused_with_its_reason(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is handed to a decoder."""
    spoil, reason = {**SPOILT, **OF_COLOUR}[name]
    arrays = sent().encode()
    spoilt = with_file(arrays, spoil(arrays[1].tobytes()))
    monkeypatch.setattr(Image, "open", None)
    with pytest.raises(PayloadError, match=reason):
        SPEC.decode(spoilt)


@pytest.mark.parametrize("sides", [(16, 112), (24, 128), (128, 16), (16, 136)])
def test_a_picture_of_other_sides_than_the_spec_says_is_refused(sides: tuple[int, int]) -> None:
    arrays = sent().encode()
    claimed = with_sides(*sides)(arrays[1].tobytes())
    real = saved(Image.new("RGB", sides), subsampling=0)
    for file in (claimed, real):
        with pytest.raises(PayloadError, match="where 16 and 128 were expected"):
            SPEC.decode(with_file(arrays, file))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda a: [*a[:2], a[2][:5]], "16 pixels wide and 128 high where 16 and 80"),
        (
            lambda a: [*a[:2], np.zeros(13, np.uint8)],
            r"\(13,\) where integers of shape \(n,\), n at most 12",
        ),
        (lambda a: [*a[:2], np.zeros(0, np.uint8)], "no image"),
        (lambda a: [*a[:2], a[2][0]], r"of shape \(\) where integers"),
        (lambda a: [a[0], np.zeros(10**6, np.uint8), a[2]], "a JPEG file of at most"),
        (lambda a: with_header(a, codec="jpeg:96"), "codec 'jpeg:96'"),
        (lambda a: with_header(a, codec="uint8"), "uint8 of shape"),
    ],
)
def test_a_payload_that_is_not_as_agreed_is_refused(spoil, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PayloadError, match=said):
        SPEC.decode(spoil(sent().encode()))


def test_values_that_stop_early_are_a_picture_that_is_grey_there() -> None:
    """Its form is whole, and what is missing is shown as the coder has it: bytes within their range, no more."""
    arrays = sent().encode()
    file = arrays[1].tobytes()
    short = file[: file.index(b"\xff\xda") + 14 + 40].rstrip(b"\xff") + b"\xff\xd9"
    got = SPEC.decode(with_file(arrays, short))
    assert got.images.shape == (8, 3, 12, 9)
    assert torch.isfinite(got.images).all()
