"""CIFAR's python batches, which are pickles of Python 2.

They are checked before they are opened, and opened by an unpickler that can build arrays and
nothing else.
"""

from __future__ import annotations

import codecs
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.data.folders.files import SourceFile, read_verified
from common.errors import DataError
from common.samples.dataset import Labels, Split

_SHAPE = (3, 32, 32)

# All that a dict of lists, strings and one array needs. NumPy's own reconstruction function is
# found through an array, since the module that holds it moved between NumPy 1 and 2.
_RECONSTRUCT = np.empty(0).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): codecs.encode,  # how Python 3 writes bytes in Python 2's protocol
}


class _ArrayUnpickler(pickle.Unpickler):
    """An unpickler that can build arrays and plain containers and call nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


def read_cifar10(data_dir: Path, files: tuple[SourceFile, ...]) -> tuple[Split, Split]:
    """Read CIFAR-10's five training batches and its test batch."""
    return _read(data_dir, files, key="labels", classes=10)


def read_cifar100(data_dir: Path, files: tuple[SourceFile, ...]) -> tuple[Split, Split]:
    """Read CIFAR-100 with its hundred fine labels."""
    return _read(data_dir, files, key="fine_labels", classes=100)


def _read(
    data_dir: Path, files: tuple[SourceFile, ...], *, key: str, classes: int
) -> tuple[Split, Split]:
    """Read every batch and join a split's; DataError if one is missing, not the published one, or no batch."""
    batches: dict[str, list[tuple[NDArray[np.uint8], Labels]]] = {"train": [], "test": []}
    for file in files:
        content = read_verified(data_dir, file)
        batches[file.split].append(parse_batch(content, data_dir / file.path, key, classes))
    train, test = (
        Split(np.concatenate(images), np.concatenate(labels))
        for images, labels in (zip(*batches[split], strict=True) for split in ("train", "test"))
    )
    return train, test


def parse_batch(
    content: bytes, path: Path, key: str, classes: int
) -> tuple[NDArray[np.uint8], Labels]:
    """Return images uint8 [n, 3, 32, 32] and labels int64 [n] of one batch.

    Raises
    ------
    DataError
        the pickle asks for anything but arrays and containers, or its contents are not
        images with one label each in 0..classes-1.
    """
    try:
        batch = _ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
        data, labels = np.asarray(batch["data"]), np.asarray(batch[key])
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataError(f"{path} is not a CIFAR batch: {error or type(error).__name__}") from error
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != np.prod(_SHAPE):
        raise DataError(f"{path} holds {data.dtype} {data.shape} where a batch has uint8 (n, 3072)")
    if labels.shape != data.shape[:1] or labels.dtype.kind not in "iu":
        raise DataError(f"{path} holds {len(data)} images with {key} {labels.dtype} {labels.shape}")
    if labels.size and not (labels.min() >= 0 and labels.max() < classes):
        raise DataError(f"{path} holds {key} outside 0..{classes - 1}")
    return data.reshape(-1, *_SHAPE), labels.astype(np.int64)
