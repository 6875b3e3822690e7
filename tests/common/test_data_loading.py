"""Loading: what is embedded, what is read from files, how bad files are refused."""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torchvision.datasets
from data_files import cifar_bytes, forget_loaded, small_mnist, write_source

from common.data.loading import load
from common.data.published.catalogue import NAMES, describe
from common.data.published.sources import SOURCES
from common.errors import DataError


@pytest.fixture(autouse=True)
def _fresh_and_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_network(*args: object, **kwargs: object) -> None:
        raise URLError("no network in tests")

    forget_loaded(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("MNIST", "FashionMNIST", "CIFAR10", "CIFAR100"):
        monkeypatch.setattr(torchvision.datasets, name, no_network)


def test_describe_needs_no_files() -> None:
    shapes = {name: (describe(name).shape, len(describe(name).classes)) for name in NAMES}
    assert shapes == {
        "digits": ((1, 8, 8), 10),
        "mnist": ((1, 28, 28), 10),
        "fashionmnist": ((1, 28, 28), 10),
        "cifar10": ((3, 32, 32), 10),
        "cifar100": ((3, 32, 32), 100),
        "dsprites": ((1, 64, 64), 3),
        "femnist": ((1, 28, 28), 62),
        "reddit": ((10,), 9999),
        "reddit2k": ((10,), 2000),
    }
    for name in NAMES:
        info = describe(name)
        assert len(set(info.classes)) == len(info.classes)
        channels = 0 if info.task == "next-token" else info.shape[0]
        assert len(info.mean) == len(info.std) == channels
    assert list(describe("cifar100").classes) == sorted(describe("cifar100").classes)


def test_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(DataError, match="did you mean cifar100"):
        describe("CIFAR-100")


def test_checksums_are_torchvisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for name in ("cifar10", "cifar100"):
        published = getattr(torchvision.datasets, SOURCES[name].torchvision)
        ours = [[Path(file.path).name, file.md5] for file in SOURCES[name].files]
        assert ours == [*map(list, published.train_list), *map(list, published.test_list)]
        assert all(file.archive == published.url for file in SOURCES[name].files)
        assert all(file.path.startswith(published.base_folder) for file in SOURCES[name].files)
    for name in ("mnist", "fashionmnist"):
        published = getattr(torchvision.datasets, SOURCES[name].torchvision)
        names = [file for file, _ in published.resources]
        archives = {f"{mirror}{file}" for mirror in published.mirrors for file in names}
        assert {file.archive for file in SOURCES[name].files} <= archives


def test_digits_split_is_fixed(tmp_path: Path) -> None:
    digits = load("digits", tmp_path / "nowhere")
    assert digits.train.images.shape == (1437, 1, 8, 8)
    assert digits.test.images.shape == (360, 1, 8, 8)
    assert digits.train.images.dtype == np.uint8
    assert int(digits.train.images.max()) == int(digits.test.images.max()) == 16
    # 360 in 1,797 of 178, 182, 177, 183, 181, 182, 181, 179, 174 and 180 images
    assert np.bincount(digits.test.labels).tolist() == [36, 37, 35, 37, 36, 36, 36, 36, 35, 36]
    assert digits.checksum.startswith("988a0d929fc165ce")  # figures once published stay comparable
    assert not (tmp_path / "nowhere").exists()


def test_digits_train_and_test_are_all_of_it(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    digits = load("digits", tmp_path)
    together = np.concatenate([digits.train.images, digits.test.images]).reshape(1797, 64)
    published = load_digits().data
    assert sorted(map(bytes, together)) == sorted(map(bytes, published.astype(np.uint8)))


def test_loaded_once_and_read_only(tmp_path: Path) -> None:
    first = load("digits", tmp_path)
    assert load("digits", tmp_path) is first
    with pytest.raises(ValueError, match="read-only"):
        first.train.images[0] = 0


def test_idx_files_give_images_and_labels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("mnist", "fashionmnist"):
        contents = small_mnist()
        write_source(monkeypatch, tmp_path, name, contents)
        data = load(name, tmp_path)
        assert data.train.images.shape == (30, 1, 28, 28)
        assert data.train.images[3].tobytes() == contents[0][16 + 3 * 784 : 16 + 4 * 784]
        assert data.test.images.tobytes() == contents[2][16:]
        assert data.train.labels.tolist() == [i % 10 for i in range(30)]
        assert data.train.labels.dtype == np.int64


def test_cifar100_files_give_images_and_fine_labels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (220, 3, 32, 32), dtype=np.uint8)
    labels = [i % 100 for i in range(220)]
    contents = [
        cifar_bytes(images[:200], labels[:200], "fine_labels"),
        cifar_bytes(images[200:], labels[200:], "fine_labels"),
    ]
    write_source(monkeypatch, tmp_path, "cifar100", contents)
    data = load("cifar100", tmp_path)
    np.testing.assert_array_equal(data.train.images, images[:200])
    np.testing.assert_array_equal(data.test.images, images[200:])
    assert data.train.labels.tolist() == labels[:200]
    assert data.test.labels.tolist() == labels[200:]


def test_cifar10_joins_its_batches_in_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    images = np.arange(12 * 3072, dtype=np.uint32).astype(np.uint8).reshape(12, 3, 32, 32)
    batches = [cifar_bytes(images[2 * i : 2 * i + 2], [i, 9 - i], "labels") for i in range(6)]
    write_source(monkeypatch, tmp_path, "cifar10", batches)
    data = load("cifar10", tmp_path)
    np.testing.assert_array_equal(data.train.images, images[:10])
    assert data.train.labels.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
    assert data.test.labels.tolist() == [5, 4]


@pytest.mark.parametrize("name", ["mnist", "fashionmnist", "cifar10", "cifar100"])
def test_missing_file_is_named_with_where_to_put_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load(name, tmp_path)
    message = str(caught.value)
    first = SOURCES[name].files[0]
    assert str(tmp_path / first.path) in message
    assert first.archive in message
    assert "no network in tests" in message
    assert "\n" not in message


def test_one_missing_file_of_several_is_the_one_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_source(monkeypatch, tmp_path, "mnist", small_mnist())
    gone = tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte"
    gone.unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte is missing"):
        load("mnist", tmp_path)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_damaged_file_is_named_and_never_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: str
) -> None:
    write_source(monkeypatch, tmp_path, "mnist", small_mnist())
    path = tmp_path / "MNIST/raw/train-images-idx3-ubyte"
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.write_bytes({"truncated": content[:2000], "flipped": content, "empty": b""}[damage])
    with pytest.raises(DataError, match=rf"{path} is truncated or damaged"):
        load("mnist", tmp_path)
    assert not (tmp_path / "nectar-store/mnist").exists()


def test_a_set_with_other_checksums_than_the_published_is_refused(tmp_path: Path) -> None:
    for file in SOURCES["cifar100"].files:
        (tmp_path / file.path).parent.mkdir(exist_ok=True)
        (tmp_path / file.path).write_bytes(
            cifar_bytes(np.zeros((1, 3, 32, 32), np.uint8), [0], "fine_labels")
        )
    with pytest.raises(DataError, match="the published file has 16019d7e3df5f24257cddd939b257f8d"):
        load("cifar100", tmp_path)


class _Malicious:
    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (os.environ["NECTAR_TEST_TRAP"],)


def test_a_pickle_that_would_run_code_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trap = tmp_path / "trap"
    monkeypatch.setenv("NECTAR_TEST_TRAP", str(trap))
    evil = pickle.dumps({"data": _Malicious(), "fine_labels": []}, protocol=2)
    write_source(monkeypatch, tmp_path, "cifar100", [evil, evil])
    with pytest.raises(DataError, match=r"train is not a CIFAR batch: it asks for posix\.mkdir"):
        load("cifar100", tmp_path)
    assert not trap.exists()


def _torchvision_that_writes(contents: dict[str, bytes]) -> object:
    def constructor(root: Path, download: bool) -> None:
        assert download
        for path, content in contents.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)

    return constructor


def test_first_use_downloads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    contents = small_mnist()
    source = write_source(monkeypatch, tmp_path / "elsewhere", "mnist", contents)
    served = {file.path: content for file, content in zip(source.files, contents, strict=True)}
    monkeypatch.setattr(torchvision.datasets, "MNIST", _torchvision_that_writes(served))
    data_dir = tmp_path / "new" / "data"
    assert len(load("mnist", data_dir).train) == 30
    assert all((data_dir / path).read_bytes() == content for path, content in served.items())
    assert not list(data_dir.glob(".nectar-download*"))


def test_a_damaged_download_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    contents = small_mnist()
    source = write_source(monkeypatch, tmp_path / "elsewhere", "mnist", contents)
    served = {file.path: content[:-1] for file, content in zip(source.files, contents, strict=True)}
    monkeypatch.setattr(torchvision.datasets, "MNIST", _torchvision_that_writes(served))
    with pytest.raises(DataError, match="the download failed"):
        load("mnist", tmp_path / "data")
    assert not (tmp_path / "data" / source.files[0].path).exists()
    assert not list((tmp_path / "data").glob(".nectar-download*"))


def test_torchvision_is_not_imported_for_files_that_are_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_source(monkeypatch, tmp_path, "mnist", small_mnist())
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    assert len(load("mnist", tmp_path).test) == 10


def test_checksum_follows_the_content(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    contents = small_mnist()
    write_source(monkeypatch, tmp_path / "a", "mnist", contents)
    first = load("mnist", tmp_path / "a").checksum
    contents[3] = contents[3][:-1] + bytes([contents[3][-1] ^ 1])
    write_source(monkeypatch, tmp_path / "b", "mnist", contents)
    assert load("mnist", tmp_path / "b").checksum != first
    assert len(first) == len(hashlib.sha256().hexdigest())
