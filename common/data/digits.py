"""The embedded data set: scikit-learn's 1,797 real handwritten digits, 8x8, no download."""

from __future__ import annotations

import numpy as np

from common.data.dataset import Split
from common.data.stratify import stratified_mask
from common.seeding import derive

TEST_IMAGES = 360


def read_digits() -> tuple[Split, Split]:
    """Return 1,437 training and 360 test images, raw uint8 values 0..16, split once and for all.

    The split is stratified and hangs on each image's place alone (a hash of it orders each class),
    neither on a run's seed nor on a library's random stream, so that every figure ever published
    on it speaks of the same 360 images.
    """
    from sklearn.datasets import load_digits  # half a second, which only this data set should cost

    bunch = load_digits()
    images = bunch.images.astype(np.uint8)[:, None]
    labels = bunch.target.astype(np.int64)
    priority = np.array([derive(0, "digits", "test", place) for place in range(len(labels))])
    test = stratified_mask(labels, TEST_IMAGES, priority)
    return Split(images[~test], labels[~test]), Split(images[test], labels[test])
