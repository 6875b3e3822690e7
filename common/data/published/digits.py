"""The embedded data set: scikit-learn's 1,797 real handwritten digits, 8x8, no download."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.data.division.stratify import stratified_mask
from common.draws.seeding import derive
from common.samples.dataset import Split

TEST_IMAGES = 360

_SIDE = 8


def read_digits() -> tuple[Split, Split]:
    """Return 1,437 training and 360 test images, raw uint8 values 0..16, split once and for all.

    The split is stratified and depends on each image's place alone (a hash of it orders each class),
    neither on a run's seed nor on a library's random stream, so that every figure ever published
    on it speaks of the same 360 images.
    """
    table = _table()
    images = table[:, :-1].astype(np.uint8).reshape(-1, 1, _SIDE, _SIDE)
    labels = table[:, -1].astype(np.int64)
    priority = np.array([derive(0, "digits", "test", place) for place in range(len(labels))])
    test = stratified_mask(labels, TEST_IMAGES, priority)
    return Split(images[~test], labels[~test]), Split(images[test], labels[test])


def _table() -> NDArray[np.float64]:
    """Return a row an image: 64 values, then the label.

    scikit-learn's file is read without scikit-learn where it lies where it has always lain: its import takes most of
    a second, which a real federation's device, a new process for every message, would wait for every time.
    """
    spec = find_spec("sklearn")
    if spec is not None and spec.origin:
        file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            with gzip.open(file, "rt") as text:
                return np.loadtxt(text, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])
