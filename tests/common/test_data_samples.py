"""Samples: raw on the device, normalised in batch by the public constants."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from common.data.loading import load
from common.samples.dataset import DatasetInfo, Split
from common.samples.inputs import Samples, samples

INFO = DatasetInfo("two", (2, 1, 2), ("a", "b"), (0.5, 0.25), (0.5, 0.125), 255.0)


def _split() -> Split:
    images = np.array([[[[0, 255]], [[51, 102]]], [[[255, 0]], [[0, 255]]]], dtype=np.uint8)
    return Split(images, np.array([1, 0]))


def test_inputs_by_hand() -> None:
    x = samples(_split(), INFO).inputs(slice(None))
    # channel 0: 0 -> (0 - .5)/.5 = -1, 255 -> 1;
    # channel 1: 51 -> (.2 - .25)/.125 = -.4, 102 -> 1.2, 0 -> -2, 255 -> 6
    expected = [[[[-1.0, 1.0]], [[-0.4, 1.2]]], [[[1.0, -1.0]], [[-2.0, 6.0]]]]
    assert x.dtype == torch.float32
    torch.testing.assert_close(x, torch.tensor(expected), rtol=1e-6, atol=1e-6)


def test_inputs_match_float64_for_every_raw_value() -> None:
    raw = np.arange(256, dtype=np.uint8).reshape(256, 1, 1, 1)
    info = DatasetInfo("one", (1, 1, 1), ("a",), (0.1307,), (0.3081,), 255.0)
    x = samples(Split(raw, np.zeros(256, np.int64)), info).inputs(torch.arange(256))
    exact = (raw.astype(np.float64) / 255 - 0.1307) / 0.3081
    np.testing.assert_allclose(x.numpy(), exact, rtol=0, atol=5e-7)


def test_float_data_is_normalised_too_and_left_alone() -> None:
    split = Split(_split().images.astype(np.float32), _split().labels)
    s = samples(split, INFO)
    before = s.raw.clone()
    x = s.inputs(slice(0, 2))
    torch.testing.assert_close(x, samples(_split(), INFO).inputs(slice(0, 2)))
    x.zero_()
    assert torch.equal(s.raw, before)


def test_indices_choose_images_and_labels() -> None:
    s = samples(_split(), INFO, np.array([1]))
    assert len(s) == 1
    assert s.labels.tolist() == [0]
    assert s.labels.dtype == torch.int64
    assert s.raw.dtype == torch.uint8
    assert torch.equal(s.inputs(slice(None)), samples(_split(), INFO).inputs(torch.tensor([1])))


def test_samples_are_copies_of_read_only_data() -> None:
    split = _split()
    split.images.setflags(write=False)
    s = samples(split, INFO)
    s.raw.zero_()
    assert split.images.any()


def test_normalised_images_come_back_as_they_are() -> None:
    images = torch.randn(3, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    s = Samples.of(images, torch.tensor([0, 1, 0]))
    assert torch.equal(s.inputs(torch.tensor([2, 0])), images[[2, 0]])
    assert torch.equal(s.to("cpu").inputs(slice(None)), images)


def test_labels_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="3 images with labels"):
        Samples.of(torch.zeros(3, 1, 1, 1), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="2 images with labels"):
        Split(_split().images, np.zeros(3, np.int64))


def test_digits_are_normalised(tmp_path: Path) -> None:
    digits = load("digits", tmp_path)
    x = samples(digits.train, digits.info).inputs(slice(None)).double()
    assert abs(float(x.mean())) < 1e-3
    assert abs(float(x.std()) - 1) < 1e-3


@pytest.mark.gpu
def test_normalisation_runs_on_the_device() -> None:
    s = samples(_split(), INFO).to("cuda")
    assert s.raw.device.type == s.labels.device.type == "cuda"
    x = s.inputs(torch.tensor([1, 0]))  # indices drawn on the CPU serve
    assert x.device.type == "cuda"
    torch.testing.assert_close(x.cpu(), samples(_split(), INFO).inputs(torch.tensor([1, 0])))
