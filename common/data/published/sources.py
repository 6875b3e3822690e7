"""The files of each data set, and the checksums of those that are published.

CIFAR's are torchvision's own; torchvision knows those of MNIST's archives, here are those of the
unpacked files.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import logging
import math
import pickle
import shutil
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from common.data.division.stratify import stratified_mask
from common.data.published.leaf import (
    FREQUENT,
    VOCABULARY,
    LeafSource,
    SourceFile,
    read_femnist,
    read_reddit,
)
from common.draws.seeding import derive
from common.errors import DataError
from common.samples.dataset import Labels, Split
from common.storage.limits import ANYWHERE, Bounds


@dataclass(frozen=True)
class DownloadSource:
    """Where a data set comes from."""

    torchvision: str
    files: tuple[SourceFile, ...]
    read: Callable[[Path, tuple[SourceFile, ...]], tuple[Split, Split]]

    def paths(self, data_dir: Path) -> list[Path]:
        """Return where its files lie, if they are there."""
        return [data_dir / file.path for file in self.files]

    def missing(self, data_dir: Path) -> list[SourceFile]:
        """Return the files that are not below ``data_dir``."""
        return [file for file in self.files if not (data_dir / file.path).is_file()]

    def splits(self, data_dir: Path) -> tuple[Split, Split]:
        """Return the training and the test split; DataError if a file is missing, truncated or damaged, naming it."""
        return self.read(data_dir, self.files)

    def fingerprint(self, data_dir: Path) -> str:
        """Return what tells a store built from these files from one built from others."""
        listing = "\n".join(f"{file.md5} {file.path}" for file in self.files)
        return hashlib.sha256(listing.encode()).hexdigest()


def read_verified(data_dir: Path, file: SourceFile) -> bytes:
    """Return a published file's content by its checksum; DataError if it is another or cannot be read."""
    path = data_dir / file.path
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}); it comes from {file.archive}"
        ) from error
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if md5 != file.md5:
        raise DataError(
            f"{path} is truncated or damaged: its {len(content):,} bytes have the md5 {md5}, the "
            f"published file has {file.md5}; delete it (it is downloaded again) or unpack "
            f"{file.archive} again"
        )
    return content


_TORONTO = "https://www.cs.toronto.edu/~kriz"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"


def _idx(folder: str, publisher: str, md5: tuple[str, str, str, str]) -> tuple[SourceFile, ...]:
    names: tuple[tuple[Literal["train", "test"], str], ...] = (
        ("train", "train-images-idx3-ubyte"),
        ("train", "train-labels-idx1-ubyte"),
        ("test", "t10k-images-idx3-ubyte"),
        ("test", "t10k-labels-idx1-ubyte"),
    )
    return tuple(
        SourceFile(f"{folder}/{name}", split, digest, f"{publisher}/{name}.gz")
        for (split, name), digest in zip(names, md5, strict=True)
    )


def _cifar(
    folder: str, archive: str, train: dict[str, str], test: dict[str, str]
) -> tuple[SourceFile, ...]:
    address = f"{_TORONTO}/{archive}"
    return tuple(
        SourceFile(f"{folder}/{name}", "train", md5, address) for name, md5 in train.items()
    ) + tuple(SourceFile(f"{folder}/{name}", "test", md5, address) for name, md5 in test.items())


def read_cifar10(data_dir: Path, files: tuple[SourceFile, ...]) -> tuple[Split, Split]:
    """Read CIFAR-10's five training batches and its test batch."""
    return _read(data_dir, files, key="labels", classes=10)


def read_cifar100(data_dir: Path, files: tuple[SourceFile, ...]) -> tuple[Split, Split]:
    """Read CIFAR-100 with its hundred fine labels."""
    return _read(data_dir, files, key="fine_labels", classes=100)


def read_idx_splits(data_dir: Path, files: tuple[SourceFile, ...]) -> tuple[Split, Split]:
    """Read train images, train labels, test images and test labels, in this order, or raise DataError."""
    arrays = [parse_idx(read_verified(data_dir, file), data_dir / file.path) for file in files]
    train, test = (
        Split(images[:, None], labels.astype(np.int64))
        for images, labels in (arrays[:2], arrays[2:])
    )
    return train, test


# ---- dsprites ------------------------------------------------------------------------------------
# dSprites (Matthey et al., 2017), read from the published npz, with the twelve clients of Fedssyn's paper.
#
# A client sees one of three shapes in one of four quarters of the image (Li et al., 2024, appendix A.4).

FOLDER = "dsprites"
SIDE = 64
#: columns of the published tables of factors: colour, shape, scale, orientation, x, y
_DSPRITES_SHAPE, _X, _Y, _FACTORS = 1, 4, 5, 6
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
        """Return what is not below ``data_dir``."""
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
    labels = classes[:, _DSPRITES_SHAPE].astype(np.int64)
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
    elif not np.isin(classes[:, _DSPRITES_SHAPE], np.arange(_SHAPES)).all():
        wrong = f"latents_classes name a shape outside 0..{_SHAPES - 1}"
    else:
        return
    raise DataError(f"{path} is not dSprites' .npz: {wrong}; take it again from {_PUBLISHER}")


def _client(labels: Labels, values: NDArray[np.floating[Any]]) -> Labels:
    """Return whose each image is: the quarter its sprite is in, and its shape."""
    right, low = ((values[:, axis] >= 0.5).astype(np.int64) for axis in (_X, _Y))
    return labels * _QUARTERS + right + 2 * low


# ---- every data set's files ----------------------------------------------------------------------

SOURCES: dict[str, DownloadSource | LeafSource | SpritesSource] = {
    "mnist": DownloadSource(
        "MNIST",
        _idx(
            "MNIST/raw",
            _MNIST,
            (
                "6bbc9ace898e44ae57da46a324031adb",
                "a25bea736e30d166cdddb491f175f624",
                "2646ac647ad5339dbf082846283269ea",
                "27ae3e4e09519cfbb04c329615203637",
            ),
        ),
        read_idx_splits,
    ),
    "fashionmnist": DownloadSource(
        "FashionMNIST",
        _idx(
            "FashionMNIST/raw",
            _FASHION,
            (
                "f4a8712d7a061bf5bd6d2ca38dc4d50a",
                "9018921c3c673c538a1fc5bad174d6f9",
                "8181f5470baa50b63fa0f6fddb340f0a",
                "15d484375f8d13e6eb1aabb0c3f46965",
            ),
        ),
        read_idx_splits,
    ),
    "cifar10": DownloadSource(
        "CIFAR10",
        _cifar(
            "cifar-10-batches-py",
            "cifar-10-python.tar.gz",
            train={
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            },
            test={"test_batch": "40351d587109b95175f43aff81a1287e"},
        ),
        read_cifar10,
    ),
    "cifar100": DownloadSource(
        "CIFAR100",
        _cifar(
            "cifar-100-python",
            "cifar-100-python.tar.gz",
            train={"train": "16019d7e3df5f24257cddd939b257f8d"},
            test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        ),
        read_cifar100,
    ),
    "dsprites": SpritesSource(),
    "femnist": LeafSource("femnist", read_femnist),
    "reddit": LeafSource("reddit", read_reddit, (VOCABULARY,)),
    "reddit2k": LeafSource("reddit", partial(read_reddit, most=FREQUENT), (VOCABULARY,)),
}

# ---- cifar ---------------------------------------------------------------------------------------
# CIFAR's python batches, which are pickles of Python 2.
#
# They are checked before they are opened, and opened by an unpickler that can build arrays and nothing else.

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
    """Return images uint8 [n, 3, 32, 32] and labels int64 [n] of one batch, or raise DataError."""
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


# ---- digits --------------------------------------------------------------------------------------
# The embedded data set: scikit-learn's 1,797 real handwritten digits, 8x8, no download.

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


# ---- idx -----------------------------------------------------------------------------------------
# MNIST's idx format: a big-endian header (type, rank, sizes), then unsigned bytes.

_UNSIGNED_BYTE = 0x08


def parse_idx(content: bytes, path: Path) -> NDArray[np.uint8]:
    """Return the array in an idx file's ``content``, or raise DataError."""
    if len(content) < 4 or content[:3] != bytes([0, 0, _UNSIGNED_BYTE]):
        raise DataError(
            f"{path} is not an idx file of unsigned bytes: it starts with {content[:4]!r}"
        )
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise DataError(
            f"{path} is truncated: it ends within its header, after {len(content)} bytes"
        )
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], ">u4"))
    expected = start + math.prod(shape)
    if len(content) != expected:
        raise DataError(
            f"{path} is truncated or damaged: it has {len(content):,} bytes, its header announces "
            f"{expected:,}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


# ---- download ------------------------------------------------------------------------------------
# The first use of a data set where there is a network: torchvision fetches its files.

log = logging.getLogger("flwr")


def ensure_files(
    name: str, source: DownloadSource, data_dir: Path, bounds: Bounds = ANYWHERE
) -> None:
    """Download what is missing below ``data_dir``; without a network say what to put where.

    The caller holds the data set's lock, so that one process downloads and the others wait.
    """
    missing = source.missing(data_dir)
    if not missing:
        return
    bounds.may_download(name)
    log.info("%s: %s is missing, downloading it", name, data_dir / missing[0].path)
    try:
        _download(name, source, data_dir)
    except (
        Exception
    ) as error:  # a network fails in any way it likes; the user's way out is the same
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        first, others = missing[0], len(missing) - 1
        more = f" (and {others} more from there)" if others else ""
        raise DataError(
            f"{name} cannot be loaded: {data_dir / first.path}{more} is missing and the download "
            f"failed ({reason}); unpack {first.archive} so that the file lies there, or point "
            "data-dir or NECTAR_DATA to a folder that has it"
        ) from error


def _download(name: str, source: DownloadSource, data_dir: Path) -> None:
    """Let torchvision download into a folder of its own, and move what checks to its place.

    A download that breaks off leaves nothing that looks like a file of the data set.
    """
    import torchvision.datasets  # two seconds, which only a download should cost

    staging = data_dir / f".nectar-download-{name}"
    shutil.rmtree(staging, ignore_errors=True)  # what a killed download left
    staging.mkdir(parents=True)
    try:
        getattr(torchvision.datasets, source.torchvision)(root=staging, download=True)
        for file in source.missing(data_dir):
            read_verified(staging, file)
            (data_dir / file.path).parent.mkdir(parents=True, exist_ok=True)
            (staging / file.path).replace(data_dir / file.path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
