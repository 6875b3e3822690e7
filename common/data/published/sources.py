"""The files of each data set, and the checksums of those that are published.

CIFAR's are torchvision's own; torchvision knows those of MNIST's archives, here are those of the
unpacked files.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from common.data.folders.files import Source, SourceFile
from common.data.published.cifar import read_cifar10, read_cifar100
from common.data.published.dsprites import SpritesSource
from common.data.published.idx import read_idx_splits
from common.data.published.leaf import LeafSource
from common.data.published.leaf_femnist import read_femnist
from common.data.published.leaf_reddit import read_reddit
from common.data.published.leaf_vocabulary import FREQUENT, VOCABULARY

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


SOURCES: dict[str, Source | LeafSource | SpritesSource] = {
    "mnist": Source(
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
    "fashionmnist": Source(
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
    "cifar10": Source(
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
    "cifar100": Source(
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
