"""dSprites (Matthey et al., 2017), read from the published npz, with the twelve clients of Fedssyn's paper.

A client sees one of three shapes in one of four quarters of the image (Li et al., 2024, appendix A.4).
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.data.division.stratify import stratified_mask
from common.data.folders.files import SourceFile
from common.draws.seeding import derive
from common.errors import DataError
from common.samples.dataset import Labels, Split

FOLDER = "dsprites"
SIDE = 64
#: columns of the published tables of factors: colour, shape, scale, orientation, x, y
_SHAPE, _X, _Y, _FACTORS = 1, 4, 5, 6
_SHAPES, _QUARTERS = 3, 4
_TEST_SHARE = 0.1

_PUBLISHER = "https://github.com/google-deepmind/dsprites-dataset"
_READER = 1  # another number makes every store be built again


@dataclass(frozen=True)
class SpritesSource:
    """One npz below ``dsprites`` in the data directory: the published one, or another with a part of its grid.

    No checksum is published. Arrays alone are read; the file's metadata, which is a pickle, is never opened.
    """

    def paths(self, data_dir: Path) -> list[Path]:
        """Return where its file lies, if it is there."""
        return sorted((data_dir / FOLDER).glob("*.npz"))

    def missing(self, data_dir: Path) -> list[SourceFile]:
        """Return what does not lie below ``data_dir``."""
        there = self.paths(data_dir)
        return [] if there else [SourceFile(f"{FOLDER}/*.npz", "train", "", _PUBLISHER)]

    def splits(self, data_dir: Path) -> tuple[Split, Split]:
        """Return the training split, with owners, and the test split; DataError if the file is missing or damaged."""
        return read_dsprites(self._file(data_dir))

    def fingerprint(self, data_dir: Path) -> str:
        """Return what tells this file's store from another's; DataError if it is missing, or one of several."""
        path = self._file(data_dir)
        about = path.stat()
        line = f"dsprites {_READER}\0{path.name}\0{about.st_size}\0{about.st_mtime_ns}"
        return hashlib.sha256(line.encode(errors="surrogateescape")).hexdigest()

    def _file(self, data_dir: Path) -> Path:
        there = self.paths(data_dir)
        if len(there) != 1:
            found = "no .npz file" if not there else f"{len(there)} .npz files"
            raise DataError(
                f"{data_dir / FOLDER} holds {found}, and dSprites is one, which is never downloaded: put the one that "
                f"its publisher offers there ({_PUBLISHER}), or point data-dir or NECTAR_DATA to a folder that has it"
            )
        return there[0]


def read_dsprites(path: Path) -> tuple[Split, Split]:
    """Return dSprites' splits: a label is the shape (square, ellipse, heart), an owner one of the paper's clients.

    A tenth of every client's images is the test split, by a hash of each image's place in the file alone, so that
    every figure ever published on a file speaks of the same images.

    Parameters
    ----------
    path : Path
        The npz, with ``imgs`` (0 and 1), ``latents_classes`` and ``latents_values``.

    Returns
    -------
    tuple of Split
        Training, with owners, and test; images uint8 [n, 1, 64, 64] of 0 and 1.

    Raises
    ------
    DataError
        The file is damaged, or not of the published form.
    """
    images, labels, owners = _arrays(path)
    priority = np.array([derive(0, "dsprites", "test", place) for place in range(len(labels))])
    test = stratified_mask(owners, round(_TEST_SHARE * len(labels)), priority)
    return (
        Split(images[~test], labels[~test], owners[~test]),
        Split(images[test], labels[test]),
    )


def _arrays(path: Path) -> tuple[NDArray[np.uint8], Labels, Labels]:
    try:
        with np.load(path, allow_pickle=False) as held:
            images, classes, values = (
                np.asarray(held[name]) for name in ("imgs", "latents_classes", "latents_values")
            )
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path} is not dSprites' .npz ({' '.join(str(error).split())[:200]}); take it again from {_PUBLISHER}"
        ) from error
    _check(path, images, classes, values)
    labels = classes[:, _SHAPE].astype(np.int64)
    return images[:, None], labels, _client(labels, values)


def _check(
    path: Path,
    images: NDArray[np.generic],
    classes: NDArray[np.generic],
    values: NDArray[np.generic],
) -> None:
    """Refuse arrays that are not dSprites'."""
    n = len(images) if images.ndim else 0
    if not n or images.dtype != np.uint8 or images.shape[1:] != (SIDE, SIDE) or images.max() > 1:
        wrong = f"imgs are {images.dtype} {images.shape}, not uint8 (n, {SIDE}, {SIDE}) of 0 and 1"
    elif classes.shape != (n, _FACTORS) or classes.dtype.kind not in "iu":
        wrong = f"latents_classes are {classes.dtype} {classes.shape}, not whole numbers ({n}, {_FACTORS})"
    elif values.shape != (n, _FACTORS) or values.dtype.kind != "f":
        wrong = f"latents_values are {values.dtype} {values.shape}, not numbers ({n}, {_FACTORS})"
    elif not np.isin(classes[:, _SHAPE], np.arange(_SHAPES)).all():
        wrong = f"latents_classes name a shape outside 0..{_SHAPES - 1}"
    else:
        return
    raise DataError(f"{path} is not dSprites' .npz: {wrong}; take it again from {_PUBLISHER}")


def _client(labels: Labels, values: NDArray[np.floating[Any]]) -> Labels:
    """Return whose each image is: the quarter its sprite lies in, and its shape."""
    right, low = ((values[:, axis] >= 0.5).astype(np.int64) for axis in (_X, _Y))
    return labels * _QUARTERS + right + 2 * low
