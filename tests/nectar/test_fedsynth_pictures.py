"""FedSynth's images on a screen and beside real ones: stretched, compared by correlation, with a control."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from documents import check, written
from federation import run
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from small import Small

from common.data.published.catalogue import describe
from common.errors import FederationError
from common.samples.dataset import Dataset, DatasetInfo, Split
from common.storage import tensor_file
from common.wire.images import SyntheticImages
from nectar.export.synthetic import write_synthetic
from nectar.records.real_images import Control, Nearest, RealImages, real_images
from nectar.records.record import RunRecord
from nectar.records.synthetic_sets import contrast_of, load_sets
from nectar.report import pictures
from nectar.report.view import View
from server_app.pictures import grid, hard, in_bytes, on_screen, save_sets
from server_app.record import Record

INFO = DatasetInfo("x", (1, 2, 2), ("a", "b"), (0.5,), (0.25,), 1.0)
COLOUR = replace(INFO, shape=(3, 2, 2), mean=(0.5, 0.4, 0.3), std=(0.25, 0.1, 0.2))

FEW = (
    "model.name=mlp model.width=200 fedsynth.rate=8 fedsynth.iterations=2 fedsynth.epochs=1 "
    "fedsynth.real_batch=32"
)


def images(*rows: list[float]) -> torch.Tensor:
    """Return images [n, 1, 2, 2] of these pixel values."""
    return torch.tensor(rows).reshape(len(rows), 1, 2, 2)


# -- on a screen ------------------------------------------------------------------------------------


@pytest.mark.extended
def test_an_image_is_stretched_to_its_own_extremes_whatever_its_neighbours() -> None:
    faint = images([0.00, 0.01, 0.02, 0.04], [-50.0, 50.0, 0.0, 25.0])
    expected = images([0.0, 0.25, 0.5, 1.0], [0.0, 1.0, 0.5, 0.75])
    torch.testing.assert_close(on_screen(faint, INFO, "stretched"), expected)


def test_pixels_are_clipped_and_not_stretched() -> None:
    seen = on_screen(images([-9.0, 0.0, 1.0, 9.0]), INFO, "pixels")
    torch.testing.assert_close(seen, images([0.0, 0.5, 0.75, 1.0]))


def test_an_image_of_one_value_is_grey_and_not_nan() -> None:
    seen = on_screen(images([3.0, 3.0, 3.0, 3.0]), INFO, "stretched")
    assert torch.equal(seen, torch.full((1, 1, 2, 2), 0.5))


def test_channels_are_stretched_together_in_pixel_space() -> None:
    """A red image stays red: the smallest and largest value are sought over all three channels."""
    raw = torch.zeros(1, 3, 2, 2)
    raw[0, 0, 0, 0] = 2.0  # 0.5 + 2 * 0.25 = 1.0, the largest; blue's mean 0.3 is the smallest
    seen = on_screen(raw, COLOUR, "stretched")
    assert float(seen[0, 0, 0, 0]) == pytest.approx(1.0)
    assert float(seen[0, 2, 1, 1]) == pytest.approx(0.0, abs=1e-6)
    assert float(seen[0, 0, 1, 1]) == pytest.approx((0.5 - 0.3) / 0.7)
    assert float(seen[0, 1, 0, 1]) == pytest.approx((0.4 - 0.3) / 0.7)


def test_soft_labels_count_as_their_largest_class() -> None:
    soft = torch.tensor([[0.1, 2.0], [3.0, -1.0]])
    assert hard(soft).tolist() == [1, 0]
    sheet = grid(images([0.0, 1.0, 2.0, 3.0], [0.0, 0.0, 0.0, 1.0]), soft, INFO, "stretched")
    # a row a class, a line of white between them; class 0 is the second image
    values = np.asarray(sheet)[:: sheet.height // 5, :: sheet.width // 2]
    assert values[:2].tolist() == [[0, 0], [0, 255]]
    assert values[3:].tolist() == [[0, 85], [170, 255]]


def test_the_export_stretches_what_it_draws_and_keeps_what_was_sent(tmp_path: Path) -> None:
    sent = SyntheticImages(torch.randn(3, 1, 8, 8) * 0.05, torch.tensor([2, 2, 7]))
    write_synthetic({"s": sent}, describe("digits"), tmp_path, "stretched")
    (first, _, last) = sorted((tmp_path / "images").rglob("*.png"))
    for path, image in ((first, sent.images[0]), (last, sent.images[2])):
        with Image.open(path) as picture:
            drawn = np.asarray(picture).astype(float)
        low, high = float(image.min()), float(image.max())
        assert (drawn.min(), drawn.max()) == (0, 255)
        np.testing.assert_allclose(drawn, 255 * (image[0].numpy() - low) / (high - low), atol=0.51)
    with np.load(tmp_path / "synthetic.npz") as kept:
        assert np.array_equal(kept["images"], sent.images.numpy())


# -- in the record ----------------------------------------------------------------------------------


def test_a_record_says_how_its_images_are_to_be_looked_at(tmp_path: Path) -> None:
    sets = {"s": SyntheticImages(torch.randn(2, 1, 2, 2), torch.tensor([0, 1]))}
    for contrast in ("pixels", "stretched"):
        path = tmp_path / contrast
        save_sets(sets, 4, path, contrast)
        assert contrast_of(path) == contrast
        server_round, loaded = load_sets(path)
        assert server_round == 4
        assert torch.equal(loaded["s"].images, sets["s"].images)


@pytest.mark.parametrize(("said", "expected"), [(None, "pixels"), ("inverted", "inverted")])
def test_older_records_are_pixels_and_unknown_words_are_refused(
    tmp_path: Path, said: str | None, expected: str
) -> None:
    path = tmp_path / "sets"
    save_sets({"s": SyntheticImages(torch.zeros(1, 1, 2, 2), torch.tensor([0]))}, 1, path)
    tensors, meta = tensor_file.load(path)
    del meta["contrast"]
    meta |= {"contrast": said} if said else {}
    tensor_file.save(path, tensors, meta)
    if said is None:
        assert contrast_of(path) == expected
        return
    with pytest.raises(
        FederationError, match="contrast 'inverted', this release knows pixels, str"
    ):
        contrast_of(path)


# -- beside real images -----------------------------------------------------------------------------


def real(parts: dict[str, list[int]], pixels: np.ndarray, labels: list[int]) -> RealImages:
    split = Split(pixels.astype(np.float32), np.array(labels))
    info = replace(INFO, shape=pixels.shape[1:])
    dataset = Dataset(info, split, split, "none")
    return RealImages(
        dataset,
        {name: np.array(part, dtype=np.int64) for name, part in parts.items()},
        len(parts),
    )


def corr(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1])


def test_the_most_similar_image_is_found_by_correlation_and_the_control_at_the_site_most_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against numpy's own correlations, in chunks that do not divide the images."""
    monkeypatch.setattr("nectar.records.real_images._CHUNK", 7)
    rng = np.random.default_rng(0)
    pixels = rng.random((40, 3, 4, 4), dtype=np.float32)
    labels = [0] * 10 + [1] * 20 + [0] * 10
    parts = {
        "own": list(range(10)),  # of class 0
        "other-class": list(range(10, 30)),
        "same-class": list(range(30, 40)),
    }
    sent = rng.normal(size=(5, 3, 4, 4)).astype(np.float32)
    sent[1] = 0.01 * pixels[3] + 7  # a private image, faint and far out of range
    sent[2] = -5 * pixels[8] + 2  # another, as a negative
    found = real(parts, pixels, labels).nearest("own", torch.from_numpy(sent), "stretched")
    assert found is not None
    table = np.array([[corr(image, pixels[j]) for j in range(40)] for image in sent])
    at = np.abs(table[:, :10]).argmax(1)
    assert at[1:3].tolist() == [3, 8]
    np.testing.assert_allclose(found.figures, table[np.arange(5), at], atol=1e-5)
    assert found.figures[1] == pytest.approx(1, abs=1e-4)
    assert found.figures[2] == pytest.approx(-1, abs=1e-4)
    np.testing.assert_allclose(found.images.numpy(), pixels[:10][at], atol=1e-6)
    assert found.control is not None
    assert (found.control.site, found.control.held, found.held) == ("same-class", 10, 10)
    expected = table[:, 30:]
    nearest = expected[np.arange(5), np.abs(expected).argmax(1)]
    np.testing.assert_allclose(found.control.figures, nearest, atol=1e-5)
    among = np.array([[corr(a, b) for b in pixels[:10]] for a in pixels[:10]])
    np.fill_diagonal(among, 0)
    assert found.typical == pytest.approx(float(np.median(np.abs(among).max(1))), abs=1e-5)


@given(gain=st.floats(0.01, 100), shift=st.floats(-5, 5), sign=st.sampled_from([1, -1]))
def test_no_change_of_contrast_or_brightness_moves_the_figures(
    gain: float, shift: float, sign: int
) -> None:
    rng = np.random.default_rng(1)
    held = real({"s": list(range(6))}, rng.random((6, 1, 3, 3)), [0] * 6)
    sent = torch.from_numpy(rng.random((4, 1, 3, 3), dtype=np.float32))
    plain = held.nearest("s", sent, "stretched")
    moved = held.nearest("s", sent * gain * sign + shift, "stretched")
    assert plain is not None
    assert moved is not None
    assert torch.equal(moved.images, plain.images)
    np.testing.assert_allclose(moved.figures, sign * np.array(plain.figures), atol=5e-3)


def test_images_of_one_value_are_like_nothing_and_sites_alone_have_no_control() -> None:
    pixels = np.stack([np.full((1, 2, 2), 0.5), np.arange(4).reshape(1, 2, 2) / 3])
    held = real({"s": [0, 1], "nobody": []}, pixels, [0, 1])
    found = held.nearest(
        "s", torch.cat([torch.full((1, 1, 2, 2), 9.0), images([0, 1, 2, 3.5])]), "stretched"
    )
    assert found is not None
    assert found.figures[0] == 0.0
    assert found.figures[1] == pytest.approx(corr(np.array([0, 1, 2, 3.5]), pixels[1]), abs=1e-6)
    assert found.control is None
    assert found.typical == 0.0, "its two images have nothing in common"
    alone = real({"s": [1]}, pixels, [0, 1]).nearest("s", images([0, 1, 2, 3]), "stretched")
    assert alone is not None
    assert alone.typical is None
    assert held.nearest("elsewhere", images([0, 1, 2, 3]), "stretched") is None
    assert held.nearest("nobody", images([0, 1, 2, 3]), "stretched") is None


def test_the_words_name_the_image_that_is_most_the_sites_own() -> None:
    """Not the one with the largest correlation: 0.90 is reached elsewhere too, 0.80 is not."""
    control = Control("partition-1", 30, [0.88, 0.35, -0.1])
    found = Nearest(torch.zeros(3, 1, 2, 2), [0.90, -0.80, 0.2], 0.7, 1, control)
    message = pictures._of_correlations("own", found)
    assert "this site's 1 image, of either sign: median 0.80, largest 0.90." in message
    assert "has 0.70 (median) with its most similar other one" in message
    assert "the 30 images of partition-1" in message
    assert "median 0.35, largest 0.88" in message
    assert "most this site's own has 0.80 here and 0.35 there" in message
    assert "shows the class, not a person's sample" in message
    assert "is a private example shown" in message
    alone = pictures._of_correlations("own", replace(found, control=None, typical=None))
    assert "No other site's images are at hand to compare with" in alone
    assert "private example" not in alone
    assert "most similar other one" not in alone


# -- a run ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fedsynth(tmp_path_factory: pytest.TempPathFactory) -> Record:
    keys = {"output-dir": str(tmp_path_factory.mktemp("runs")), "rounds": 2, "method": "fedsynth"}
    torch.set_num_threads(1)
    return run({**keys, "set": f"federation.sites=3 partition.alpha=1.0 {FEW}"})


def test_what_fedsynth_sent_is_stretched_wherever_it_is_drawn(fedsynth: Record) -> None:
    past = RunRecord.open(fedsynth.directory)
    assert contrast_of(fedsynth.last_sets) == contrast_of(fedsynth.best_sets) == "stretched"
    sets = past.synthetic()[1]
    assert len(sets) == 3
    for site, sent in sets.items():
        expected = in_bytes(sent.images, describe("digits"), "stretched")
        assert expected.amin((1, 2, 3)).max() == 0
        assert expected.amax((1, 2, 3)).min() == 255
        row = sent.labels == sent.labels.min()
        with Image.open(fedsynth.directory / "samples/round-002" / f"{site}.png") as picture:
            drawn = np.asarray(picture)[::4, ::4]
        assert np.array_equal(drawn[:8, :8], expected[row][0, 0].numpy())


@pytest.mark.extended
def test_the_report_compares_fedsynths_images_with_a_control(fedsynth: Record) -> None:
    document = written(fedsynth)
    check(document)
    assert "from its own smallest value, black, to its own largest, white" in document.text
    assert "the correlation of their pixel values" in document.text
    assert "whose classes are most like this site's" in document.text
    assert "This page shows real images of the data set." in document.text
    assert "root of the mean squared difference" not in document.text
    near = fedsynth.metrics()[-1]["train"]
    assert f"{near['cosine']:.4f}" in document.text
    assert f"{near['norm-error']:.4f}" in document.text
    assert "Equal updates have 1 and 0." in document.text
    alts = [image["alt"] for image in document.all("img")]
    assert any(alt.endswith("the most similar real image of each") for alt in alts)
    assert not any("nearest" in alt for alt in alts)


@pytest.mark.extended
def test_what_was_sent_in_place_of_text_is_no_picture(reddit_config: Callable[..., Any]) -> None:
    words = "fedsynth.labels=fixed fedsynth.rate=1 fedsynth.iterations=1 fedsynth.fidelity=off"
    keys = reddit_config(words, method="fedsynth")
    record = run({**keys, "set": keys["set"].replace("fedavg.", "fedsynth.")})
    assert not record.last_sets.exists()
    document = written(record)
    check(document)
    assert "The data are text: what was sent in its place is not a picture" in document.text
    assert not document.all("img")


# ---- FedDPMS' decoded means in the report ------------------------------------------------------------


DPMS = (
    "model.name=vae model.depth=1 model.embedding=6 fedvae.preliminary_rounds=1 fedvae.epochs=1 "
    "feddpms.smallest=1 feddpms.copies=4 feddpms.classes=2"
)


@pytest.mark.extended
def test_each_is_beside_the_senders_and_the_receivers_nearest(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = RealImages.nearest

    def noted(self: RealImages, site: str, images: Any, *contrast: Any) -> Any:
        asked.append(site)
        return real(self, site, images, *contrast)

    monkeypatch.setattr(RealImages, "nearest", noted)
    record = run(small(method="feddpms", rounds=3, set=DPMS))
    document = written(record)
    check(document)
    view = View(RunRecord.open(record.directory))
    assert len(view.matches) == 3
    helped: dict[str, str] = {}
    for _, site, helper, _ in view.matches:
        helped.setdefault(helper, site)
    expected = []
    shown = list(dict.fromkeys(re.findall(r"(partition-\d+): \d+ images", document.text)))
    assert set(shown) == set(view.record.synthetic()[1])
    for sender in shown:
        expected += [sender, *([helped[sender]] if sender in helped else [])]
    assert asked[-len(expected) :] == expected  # after the opening, which asks of each sender too
    for helper, site in helped.items():
        assert f"nearest at {site}" in document.text
        alternatives = [image["alt"] for image in document.all("img")]
        assert any(a.startswith(helper) and a.endswith(f"of each at {site}") for a in alternatives)
    assert isinstance(real_images(view.record), RealImages)
