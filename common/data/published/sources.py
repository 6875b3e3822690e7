"""The files of each data set, and the checksums of those that are published.

CIFAR's are torchvision's own; torchvision knows those of MNIST's archives, these are those of the
unpacked files.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import logging
import pickle
import shutil
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.data.division.stratify import stratified_mask
from common.data.published.leaf import FREQUENT, read_femnist, read_reddit
from common.draws.seeding import derive
from common.errors import DataError, short_reason
from common.samples.dataset import Split
from common.storage.limits import ANYWHERE, Bounds


@dataclass(frozen=True)
class SourceFile:
    """One published file, or a pattern of them."""

    path: str
    md5: str = ""
    archive: str = ""


@dataclass(frozen=True)
class PlacedSource:
    """Files that are made or put below the data directory and never downloaded; no checksum of them is published.

    ``read`` is given the files of each of the ``patterns``, sorted; ``origin`` says how to get them.
    """

    origin: str
    patterns: tuple[str, ...]
    read: Callable[..., tuple[Split, Split]]

    def paths(self, data_dir: Path) -> list[Path]:
        """Return the paths of those of its files that exist."""
        return [path for found in self._found(data_dir) for path in found]

    def missing(self, data_dir: Path) -> list[SourceFile]:
        """Return the names of files missing below ``data_dir``; the files of a pattern count as one."""
        found = zip(self.patterns, self._found(data_dir), strict=True)
        return [SourceFile(pattern) for pattern, files in found if not files]

    def splits(self, data_dir: Path) -> tuple[Split, Split]:
        """Return the training split, with owners, and the test split; DataError naming a missing or damaged file."""
        self._require(data_dir)
        return self.read(*self._found(data_dir))

    def fingerprint(self, data_dir: Path) -> str:
        """Return what identifies the store of exactly these files; DataError if one is missing."""
        self._require(data_dir)
        lines = [f"leaf {_READER}"]
        for path in self.paths(data_dir):
            about = path.stat()
            lines.append(f"{path.relative_to(data_dir)}\0{about.st_size}\0{about.st_mtime_ns}")
        return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()

    def _found(self, data_dir: Path) -> list[list[Path]]:
        return [sorted(filter(Path.is_file, data_dir.glob(each))) for each in self.patterns]

    def _require(self, data_dir: Path) -> None:
        if missing := self.missing(data_dir):
            raise DataError(
                f"{data_dir / missing[0].path} is missing and is never downloaded: {self.origin} so that it is found "
                "there, or point data-dir or NECTAR_DATA to a folder that has it"
            )


@dataclass(frozen=True)
class DownloadSource:
    """Published files, which torchvision downloads."""

    torchvision: str
    files: tuple[SourceFile, ...]
    read: Callable[[Path, tuple[SourceFile, ...]], tuple[Split, Split]]

    def paths(self, data_dir: Path) -> list[Path]:
        """Return the paths of its files, if they exist."""
        return [data_dir / file.path for file in self.files]

    def missing(self, data_dir: Path) -> list[SourceFile]:
        """Return the files that are not below ``data_dir``."""
        return [file for file in self.files if not (data_dir / file.path).is_file()]

    def splits(self, data_dir: Path) -> tuple[Split, Split]:
        """Return the training and the test split; DataError if a file is missing, truncated or damaged, naming it."""
        return self.read(data_dir, self.files)

    def fingerprint(self, data_dir: Path) -> str:
        """Return what identifies the store built from exactly these files."""
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


_READER = 1  # another number makes every store of placed files be built again

_TORONTO = "https://www.cs.toronto.edu/~kriz"


def _idx(name: str, publisher: str, *md5: str) -> DownloadSource:
    names = (
        *("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
        *("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
    )
    files = tuple(
        SourceFile(f"{name}/raw/{file}", digest, f"{publisher}/{file}.gz")
        for file, digest in zip(names, md5, strict=True)
    )
    return DownloadSource(name, files, _read_idx)


def _cifar(name: str, archive: str, folder: str, label: str, md5: dict[str, str]) -> DownloadSource:
    files = tuple(
        SourceFile(f"{folder}/{file}", digest, f"{_TORONTO}/{archive}")
        for file, digest in md5.items()
    )
    return DownloadSource(name, files, partial(_read_cifar, label=label))


def _read_idx(data_dir: Path, files: tuple[SourceFile, ...]) -> tuple[Split, Split]:
    """Read train images, train labels, test images and test labels, in this order, in MNIST's idx format."""
    arrays = [_idx_array(read_verified(data_dir, file)) for file in files]
    train, test = (
        Split(images[:, None], labels.astype(np.int64))
        for images, labels in (arrays[:2], arrays[2:])
    )
    return train, test


def _idx_array(content: bytes) -> NDArray[np.uint8]:
    """Return a file's unsigned bytes, which follow its type, its rank and, big-endian, its sizes."""
    start = 4 + 4 * content[3]
    shape = np.frombuffer(content[4:start], ">u4").tolist()
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


# CIFAR's python batches are pickles of Python 2. They are checked before they are opened, and opened by an unpickler
# that can build arrays and nothing else: all that a dict of lists, strings and one array needs. NumPy's own
# reconstruction function is found through an array, since the module that holds it moved between NumPy 1 and 2.
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


def _read_cifar(data_dir: Path, files: tuple[SourceFile, ...], label: str) -> tuple[Split, Split]:
    """Read every batch, the last one being the test split; an image's label is what a batch has under ``label``."""
    batches = []
    for file in files:
        content = read_verified(data_dir, file)
        try:
            batch = _ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
            labels = np.array(batch[label], dtype=np.int64)
            batches.append(Split(batch["data"].reshape(-1, 3, 32, 32), labels))
        except Exception as error:  # a pickle can raise nearly anything
            raise DataError(
                f"{data_dir / file.path} is not a CIFAR batch: {short_reason(error)}"
            ) from error
    *train, test = batches
    images, of_them = ([getattr(batch, name) for batch in train] for name in ("images", "labels"))
    return Split(np.concatenate(images), np.concatenate(of_them)), test


# ---- dsprites ------------------------------------------------------------------------------------
# dSprites (Matthey et al., 2017), read from the published npz, with the twelve clients of Fedssyn's paper.
#
# A client sees one of three shapes in one of four quarters of the image (Li et al., 2024, appendix A.4).

SIDE = 64
#: columns of the published tables of factors: colour, shape, scale, orientation, x, y
_DSPRITES_SHAPE, _X, _Y, _FACTORS = 1, 4, 5, 6
_SHAPES, _QUARTERS = 3, 4
_TEST_SHARE = 0.1

_PUBLISHER = "https://github.com/google-deepmind/dsprites-dataset"


def read_dsprites(paths: Sequence[Path]) -> tuple[Split, Split]:
    """Return dSprites' splits: a label is the shape (square, ellipse, heart), an owner one of the paper's clients.

    The npz is the published one, or another with a part of its grid; its metadata, a pickle, are never opened.
    A tenth of every client's images is the test split, by a hash of each image's place in the file alone, so that
    every figure ever published on a file speaks of the same images, uint8 [n, 1, 64, 64] of 0 and 1.
    """
    path, *others = paths
    if others:
        raise DataError(
            f"{path.parent} holds {len(paths)} .npz files, and dSprites is one: leave the published one there"
        )
    try:
        with np.load(path, allow_pickle=False) as held:
            images, classes, values = (
                np.asarray(held[name]) for name in ("imgs", "latents_classes", "latents_values")
            )
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path} is not dSprites' .npz ({short_reason(error)}); take it again from {_PUBLISHER}"
        ) from error
    _check(path, images, classes, values)
    images, labels = images[:, None], classes[:, _DSPRITES_SHAPE].astype(np.int64)
    right, low = ((values[:, axis] >= 0.5).astype(np.int64) for axis in (_X, _Y))
    owners = labels * _QUARTERS + right + 2 * low
    priority = np.array([derive(0, "dsprites", "test", place) for place in range(len(labels))])
    test = stratified_mask(owners, round(_TEST_SHARE * len(labels)), priority)
    return (
        Split(images[~test], labels[~test], owners[~test]),
        Split(images[test], labels[test]),
    )


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
        wrong = f"latents_classes are {classes.dtype} {classes.shape}, not int ({n}, {_FACTORS})"
    elif values.shape != (n, _FACTORS) or values.dtype.kind != "f":
        wrong = f"latents_values are {values.dtype} {values.shape}, not numbers ({n}, {_FACTORS})"
    elif not np.isin(classes[:, _DSPRITES_SHAPE], np.arange(_SHAPES)).all():
        wrong = f"latents_classes name a shape outside 0..{_SHAPES - 1}"
    else:
        return
    raise DataError(f"{path} is not dSprites' .npz: {wrong}; take it again from {_PUBLISHER}")


# ---- every data set's files ----------------------------------------------------------------------

_LEAF = "with its own scripts (https://github.com/TalwalkarLab/leaf"
_FEMNIST = tuple(f"leaf/femnist/{part}/*.json" for part in ("train", "test"))
_REDDIT = (
    *(f"leaf/reddit/{part}/*.json" for part in ("train", "test")),
    "leaf/reddit/vocab/reddit_vocab.json",
)
_OF_REDDIT = (
    f"make LEAF's reddit {_LEAF}; its vocabulary is a pickle, which may run code and is never opened: write that "
    "dictionary as JSON)"
)

SOURCES: dict[str, DownloadSource | PlacedSource] = {
    "mnist": _idx(
        "MNIST",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
    "fashionmnist": _idx(
        "FashionMNIST",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
    "cifar10": _cifar(
        "CIFAR10",
        "cifar-10-python.tar.gz",
        "cifar-10-batches-py",
        "labels",
        {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
    ),
    "cifar100": _cifar(
        "CIFAR100",
        "cifar-100-python.tar.gz",
        "cifar-100-python",
        "fine_labels",
        {
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        },
    ),
    "dsprites": PlacedSource(
        f"put the .npz of its publisher there ({_PUBLISHER})",
        ("dsprites/*.npz",),
        read_dsprites,
    ),
    "femnist": PlacedSource(f"make LEAF's femnist {_LEAF})", _FEMNIST, read_femnist),
    "reddit": PlacedSource(_OF_REDDIT, _REDDIT, read_reddit),
    "reddit2k": PlacedSource(_OF_REDDIT, _REDDIT, partial(read_reddit, most=FREQUENT)),
}

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

    scikit-learn's file is read without scikit-learn if it is at its usual place: the import takes most of
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
    except Exception as error:  # a network fails in any way it likes; the way out is the same
        first, others = missing[0], len(missing) - 1
        more = f" (and {others} more from there)" if others else ""
        raise DataError(
            f"{name} cannot be loaded: {data_dir / first.path}{more} is missing and the download "
            f"failed ({short_reason(error)}); unpack {first.archive} so that the file is there, or point "
            "data-dir or NECTAR_DATA to a folder that has it"
        ) from error


def _download(name: str, source: DownloadSource, data_dir: Path) -> None:
    """Let torchvision download into a temporary folder, and move verified files to their place.

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
