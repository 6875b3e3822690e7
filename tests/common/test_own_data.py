"""Data sets of one's own: a NumPy file, a function, torchvision's and the Hugging Face Hub's."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_files import forget_loaded
from PIL import Image
from real_data import data_directory

from common.config.code_fingerprint import code_files
from common.config.loading import load as load_config
from common.config.resolved import Config
from common.data.loading import load
from common.data.user import reading
from common.division import Division
from common.errors import ConfigError, DataError, NectarError
from common.samples.inputs import samples
from common.settings.sections import kind_of, module_of
from nectar.cli import main

pytestmark = pytest.mark.usefixtures("fresh_cache")


Found = dict[str, Any]


def arrays(n: int = 30, *, test: int = 6, side: int = 8) -> Found:
    """Colour images of three classes, as many of each."""
    rng = np.random.default_rng(0)
    return {
        f"{part}_{kind}": rng.integers(0, 256, (count, 3, side, side), dtype=np.uint8)
        if kind == "images"
        else np.arange(count) % 3
        for part, count in (("train", n), ("test", test))
        if count
        for kind in ("images", "labels")
    }


def resolve(tmp_path: Path, dataset: str = "", text: str = "", **keys: Any) -> Config:
    chosen = {"dataset": dataset} if dataset else {}
    return load_config({**chosen, "data-dir": str(tmp_path / "data"), "set": text, **keys})


def saved(tmp_path: Path, found: Mapping[str, Any], text: str = "", **keys: Any) -> Division:
    """Save ``found`` and return a run that learns from it."""
    path = tmp_path / "own.npz"
    np.savez(path, **found)
    return Division(resolve(tmp_path, text=f"data.file={path} {text}", **keys))


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a maker of modules: ``module(function)`` gives the function's import path."""

    def make(function: Any) -> str:
        own = types.ModuleType("own_module")
        own.images = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "own_module", own)
        return "own_module:images"

    return make


# --- a file


def test_a_file_alone_chooses_the_data_set_and_is_read_as_it_is(tmp_path: Path) -> None:
    found = arrays()
    run = saved(tmp_path, found).run
    assert run.config.dataset == "file"
    assert (run.info.name, run.info.shape, run.info.scale) == ("own.npz", (3, 8, 8), 255.0)
    assert (run.info.classes, run.info.mean) == (("0", "1", "2"), (0.5, 0.5, 0.5))
    for split, part in (
        (Division(run.config).dataset.train, "train"),
        (Division(run.config).dataset.test, "test"),
    ):
        np.testing.assert_array_equal(split.images, found[f"{part}_images"])
        np.testing.assert_array_equal(split.labels, found[f"{part}_labels"])
    assert load_config(run.config.to_run_config()) == run.config


@pytest.mark.parametrize(
    ("change", "raw", "scale"),
    [
        (lambda x: x.transpose(0, 2, 3, 1), lambda x: x, 255.0),
        (lambda x: x[:, 0], lambda x: x[:, :1], 255.0),
        (lambda x: x.astype(np.int64), lambda x: x, 255.0),
        (lambda x: (x / 255).astype(np.float64), lambda x: (x / 255).astype(np.float32), 1.0),
        (lambda x: x > 99, lambda x: (x > 99).astype(np.uint8), 1.0),
        (lambda x: x.astype(">u2") * 257, lambda x: x.astype(np.uint16) * 257, 65535.0),
    ],
)
def test_forms_of_images(tmp_path: Path, change: Any, raw: Any, scale: float) -> None:
    found = arrays()
    plain = found["train_images"]
    for part in ("train", "test"):
        found[f"{part}_images"] = change(found[f"{part}_images"])
    run = saved(tmp_path, found).run
    np.testing.assert_array_equal(Division(run.config).dataset.train.images, raw(plain))
    assert Division(run.config).dataset.train.images.dtype == raw(plain).dtype
    assert run.info.scale == scale
    inputs = samples(Division(run.config).dataset.train, run.info).inputs(slice(None))
    expected = raw(plain).astype(np.float64) / scale * 2 - 1
    np.testing.assert_allclose(inputs.numpy(), expected, atol=1e-5)


def test_keras_names_and_labels_in_a_column_and_others_that_are_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = arrays()
    keras = {f"{'x' if 'im' in k else 'y'}_{k.partition('_')[0]}": v for k, v in found.items()}
    keras["y_train"] = keras["y_train"][:, None].astype(np.uint8)
    with caplog.at_level("WARNING", "flwr"):
        run = saved(tmp_path, keras | {"val_images": np.zeros(1)}).run
        np.testing.assert_array_equal(
            Division(run.config).dataset.train.labels, found["train_labels"]
        )
    assert "not used: val_images" in caplog.text


def test_classes_and_constants_are_the_sets_unless_the_run_states_others(tmp_path: Path) -> None:
    found = {**arrays(), "classes": np.array(["a", "b", "c", "d"]), "mean": 0.25, "std": [0.1] * 3}
    info = saved(tmp_path, found).run.info
    assert (info.classes, info.mean, info.std) == (tuple("abcd"), (0.25,) * 3, (0.1,) * 3)
    info = saved(
        tmp_path, found, "images.mean=0.1,0.2,0.3 images.std=1 images.classes=x,y,z"
    ).run.info
    assert (info.classes, info.mean, info.std) == (tuple("xyz"), (0.1, 0.2, 0.3), (1.0,) * 3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"train_images": None}, "lacks train_images: it must hold train_images and train_labels"),
        ({"test_labels": None}, "lacks test_labels"),
        ({"train_labels": np.zeros(29, int)}, "30 train_images with 29 train_labels"),
        ({"train_labels": np.full(30, -1)}, "holds -1: labels count from 0"),
        ({"train_labels": np.full(30, np.nan)}, "train_labels is float64 of shape (30,)"),
        ({"train_labels": np.zeros((30, 3), int)}, "train_labels is int64 of shape (30, 3)"),
        ({"train_labels": np.zeros(30, int), "test_labels": np.zeros(6, int)}, "two or more"),
        ({"train_labels": np.full(30, 1 << 40)}, "the largest label is 1099511627776"),
        ({"train_images": np.zeros((30, 8))}, "train_images has shape (30, 8): it must be [n, H"),
        ({"train_images": np.zeros((30, 5, 8, 8))}, "neither end could be the channels"),
        ({"train_images": np.zeros((30, 3, 8, 3))}, "either end could be the channels"),
        ({"train_images": np.zeros((30, 3, 0, 8))}, "its images are empty"),
        ({"train_images": np.full((30, 3, 8, 8), np.nan)}, "holds NaN"),
        ({"train_images": np.full((30, 3, 8, 8), 1.5)}, "holds 1.5 to 1.5: floats must be in 0"),
        ({"train_images": np.full((30, 3, 8, 8), 300)}, "holds 300 to 300 as int64"),
        ({"train_images": np.zeros((30, 3, 9, 9), np.uint8)}, "are not of the training images' f"),
        ({"train_images": np.array(["a"] * 30)}, "must be an array of numbers, not of <U1"),
        ({"train_images": np.array([None] * 30)}, "holds Python objects, which are never unpickl"),
        ({"x_train": np.zeros(1)}, "has train_images twice"),
        ({"classes": np.array(["a", "b"])}, "2 names, and labels up to 2"),
        ({"classes": np.array(["a", "a", "b"])}, "there twice"),
        ({"classes": np.array([None])}, "holds Python objects"),
        (
            {"mean": np.array([0.1, 0.2])},
            "mean must be one finite number, or one for each of 3 channels",
        ),
        ({"std": 0.0}, "std must be one finite number above 0"),
        (
            {"train_images": np.zeros((0, 3, 8, 8), np.uint8), "train_labels": np.zeros(0, int)},
            "has no training image",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_a_sentence(
    tmp_path: Path, change: Mapping[str, Any], said: str
) -> None:
    found = {key: value for key, value in (arrays() | change).items() if value is not None}
    with pytest.raises(DataError, match=re.escape(said)) as caught:
        saved(tmp_path, found).dataset  # noqa: B018
    assert "\n" not in str(caught.value)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    division = Division(resolve(tmp_path, text=f"data.file={tmp_path / 'no.npz'}"))
    with pytest.raises(DataError, match=r"cannot be read \(No such file"):
        division.run  # noqa: B018
    (tmp_path / "no.npz").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(DataError, match=r"cannot be read as a \.npz file"):
        division.run  # noqa: B018
    with (tmp_path / "no.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match="is one array"):
        division.run  # noqa: B018


# --- a function


@pytest.mark.parametrize("form", ["mapping", "tensors", "torch", "pictures"])
def test_a_function_returns_arrays_tensors_or_data_sets_of_torchs(
    tmp_path: Path, module: Callable[..., str], form: str
) -> None:
    found = arrays()
    splits = [(found[f"{part}_images"], found[f"{part}_labels"]) for part in ("train", "test")]

    def images(directory: Path) -> Any:
        assert directory == tmp_path / "data"
        if form == "mapping":
            return found
        if form == "tensors":
            return {key: torch.from_numpy(value) for key, value in found.items()}
        pairs = [torch.utils.data.TensorDataset(*map(torch.from_numpy, split)) for split in splits]
        return tuple(pairs) if form == "torch" else tuple(map(Pictures, splits))

    run = Division(resolve(tmp_path, module(images))).run
    np.testing.assert_array_equal(Division(run.config).dataset.train.images, found["train_images"])
    np.testing.assert_array_equal(Division(run.config).dataset.test.labels, found["test_labels"])
    assert run.info.classes == (("a", "b", "c") if form == "pictures" else ("0", "1", "2"))
    assert isinstance(Division(run.config).dataset.train.images.base, np.memmap)


class Pictures:
    """A data set of torch's kind, of Pillow's images."""

    classes = ("a", "b", "c")

    def __init__(self, split: tuple[Any, Any], mode: str = "RGB") -> None:
        self.images, self.labels = split
        self.mode = mode

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, place: int) -> tuple[Image.Image, Any]:
        image = Image.fromarray(self.images[place].transpose(1, 2, 0))
        return image.convert(self.mode if place == 0 else "RGB"), self.labels[place]


def test_pictures_become_one_size_and_grey_ones_colour_among_coloured_ones(
    tmp_path: Path, module: Callable[..., str]
) -> None:
    small, large = (list(arrays(6, test=0, side=side).values()) for side in (8, 12))
    mixed = ([*small[0], *large[0]], [*small[1], *large[1]])
    path = module(lambda: Pictures(mixed, mode="L"))
    with pytest.raises(DataError, match=r"images of shape \(3, 12, 12\) and .* set data.size"):
        Division(resolve(tmp_path, path)).run.info  # noqa: B018
    assert Division(resolve(tmp_path, path, "data.size=4")).run.info.shape == (3, 4, 4)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda: None, "returned a NoneType: return a dict with train_images"),
        (lambda: 1 / 0, "raised ZeroDivisionError: division by zero"),
        (lambda a, b: None, "needs the arguments a, b"),
        (lambda: [1, 2], "returned a list"),
        (lambda: Pictures(([], [])), "holds no image"),
        (lambda: Pictures((arrays()["train_images"], ["x"] * 30)), "is a str, not an integer"),
        (
            lambda: {"train_images": [[1], [1, 2]], "train_labels": [0]},
            "is not an array of numbers",
        ),
        (3, "is a int: name a function"),
    ],
)
def test_a_function_that_cannot_be_used(
    tmp_path: Path, module: Callable[..., str], returned: Any, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        Division(resolve(tmp_path, module(returned))).run.info  # noqa: B018


def test_a_configuration_is_resolved_without_importing_the_users_module(tmp_path: Path) -> None:
    config = resolve(tmp_path, "no_such_package.module:images")
    assert load_config(config.to_run_config()) == config
    with pytest.raises(ConfigError, match="no_such_package"):
        Division(config).run.info  # noqa: B018


def test_a_sample_that_cannot_be_read_is_named_whatever_the_set_raises(
    module: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A function that returns torchvision's ImageFolder, with a picture cut short; and a set that raises."""
    from torchvision.datasets import ImageFolder

    for name in ("cat", "dog"):
        (tmp_path / "folder" / name).mkdir(parents=True)
        for i in range(3):
            pixels = np.random.default_rng(i).integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "folder" / name / f"{i}.png")
    cut = tmp_path / "folder" / "dog" / "1.png"
    cut.write_bytes(cut.read_bytes()[:200])

    def folder() -> Any:
        return ImageFolder(tmp_path / "folder")

    class Raises:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, place: int) -> Any:
            raise AssertionError("line one\nline two")

    for function, place in ((folder, "sample 4"), (lambda: Raises(), "sample 0")):
        path = module(function)
        assert main(["data", f"dataset={path}", "data.size=8"]) == 2
        said = capsys.readouterr().err.strip()
        assert f"{path} (train): {place} cannot be read" in said
        assert "\n" not in said


# --- torchvision


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **methods: Any) -> None:
    from torchvision import datasets

    cls = type(name, (datasets.VisionDataset,), methods)
    monkeypatch.setattr(datasets, name, cls, raising=False)


def test_a_set_with_parts_called_split_that_keeps_its_arrays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """torchvision's SVHN in its form: split=train or test, data [n, 3, 32, 32], labels."""
    found, made = arrays(side=32), []

    def init(self: Any, root: Path, split: str = "train", download: bool = False) -> None:
        made.append((root, split, download))
        self.data, self.labels = found[f"{split}_images"], found[f"{split}_labels"]

    stand_in(monkeypatch, "SVHN", __init__=init)
    run = Division(resolve(tmp_path, "torchvision:SVHN")).run
    np.testing.assert_array_equal(Division(run.config).dataset.train.images, found["train_images"])
    np.testing.assert_array_equal(Division(run.config).dataset.test.labels, found["test_labels"])
    assert made == [(tmp_path / "data", "train", True), (tmp_path / "data", "test", True)]
    forget_loaded(monkeypatch)
    assert Division(run.config).run.info == run.info
    assert len(made) == 2, "the second process reads the store"
    assert reading.is_at_hand("torchvision:SVHN", tmp_path / "data", 0)
    assert not reading.is_at_hand("torchvision:SVHN", tmp_path / "data", 16)


def test_a_set_of_pictures_with_other_parts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = arrays()

    def init(self: Any, root: Path, split: str = "trainval") -> None:
        if split not in ("trainval", "test"):
            raise ValueError("unknown split")
        part = split.removesuffix("val")
        self.inner = Pictures((found[f"{part}_images"], found[f"{part}_labels"]))

    stand_in(
        monkeypatch,
        "Pets",
        __init__=init,
        __len__=lambda self: len(self.inner),
        __getitem__=lambda self, place: self.inner[place],
        classes=["a", "b", "c"],
    )
    run = Division(resolve(tmp_path, "torchvision:Pets")).run
    np.testing.assert_array_equal(Division(run.config).dataset.train.images, found["train_images"])
    assert (len(Division(run.config).dataset.test), run.info.classes) == (6, ("a", "b", "c"))


def test_a_damaged_test_part_is_no_missing_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It was taken for one, and a test set was cut from the training images without a word."""
    found = arrays(side=32)

    def init(self: Any, root: Path, split: str = "train") -> None:
        if split != "train":
            raise ValueError("cannot reshape array of size 5 into shape (6,3072)")
        self.data, self.labels = found["train_images"], found["train_labels"]

    stand_in(monkeypatch, "SVHN", __init__=init)
    with pytest.raises(DataError, match="split test: cannot reshape array of size 5"):
        Division(resolve(tmp_path, "torchvision:SVHN")).run.info  # noqa: B018


@pytest.mark.extended
def test_torchvisions_own_mnist_holds_the_arrays_of_dataset_mnist(tmp_path: Path) -> None:
    directory = data_directory("mnist")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/MNIST").symlink_to(directory / "MNIST")
    own, known = (load(name, tmp_path / "data") for name in ("torchvision:MNIST", "mnist"))
    for split, other in ((own.train, known.train), (own.test, known.test)):
        np.testing.assert_array_equal(split.images, other.images)
        np.testing.assert_array_equal(split.labels, other.labels)
    assert own.info.classes[:2] == ("0 - zero", "1 - one")


def test_a_set_that_torchvision_cannot_give(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def message(dataset: str) -> str:
        with pytest.raises(NectarError) as caught:
            Division(resolve(tmp_path, dataset)).run.info  # noqa: B018
        return str(caught.value)

    def broken(self: Any, root: Path, split: str = "train", download: bool = False) -> None:
        raise RuntimeError("no route\nto host")

    stand_in(monkeypatch, "SVHN", __init__=broken)
    assert "cannot be downloaded (no route to host): put its files there" in message(
        "torchvision:SVHN"
    )
    assert "no image set SVNH, the nearest is SVHN" in message("torchvision:SVNH")
    assert "one of its variants, byclass, " in message("torchvision:EMNIST")
    assert "has no variants" in message("torchvision:MNIST:letters")
    assert "takes more than a folder and a split" in message("torchvision:FakeData")


# --- the Hugging Face Hub


class Hub:
    """What flwr-datasets gives: splits of named columns with their types."""

    def __init__(self, columns: Mapping[str, tuple[str, list[Any]]]) -> None:
        self.columns = {name: values for name, (_, values) in columns.items()}
        self.features = {name: type(kind, (), {})() for name, (kind, _) in columns.items()}
        for feature in self.features.values():
            feature.names = ["a", "b", "c"]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def select_columns(self, names: list[str]) -> list[dict[str, Any]]:
        return [{name: self.columns[name][i] for name in names} for i in range(len(self))]


def hub(monkeypatch: pytest.MonkeyPatch, **splits: Hub) -> None:
    def load_split(self: Any, name: str) -> Hub:
        if name not in splits:
            raise ValueError(
                f"The given split: '{name}' is not present in the dataset's splits: []"
            )
        return splits[name]

    package = types.ModuleType("flwr_datasets")
    package.FederatedDataset = type(  # type: ignore[attr-defined]
        "FederatedDataset", (), {"__init__": lambda self, **_: None, "load_split": load_split}
    )
    monkeypatch.setitem(sys.modules, "flwr_datasets", package)


def test_the_hubs_pictures_and_class_labels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = arrays()

    def split(part: str) -> Hub:
        pictures = Pictures((found[f"{part}_images"], found[f"{part}_labels"].tolist()))
        images, labels = zip(*(pictures[i] for i in range(len(pictures))), strict=True)
        return Hub(
            {"id": ("Value", [0]), "img": ("Image", images), "label": ("ClassLabel", labels)}
        )

    (train, test) = (split("train"), split("test"))
    for one in (train, test):
        one.columns.pop("id")
    hub(monkeypatch, train=train, validation=test)
    run = Division(resolve(tmp_path, "hf:someone/pictures")).run
    np.testing.assert_array_equal(Division(run.config).dataset.train.images, found["train_images"])
    np.testing.assert_array_equal(Division(run.config).dataset.test.labels, found["test_labels"])
    assert run.info.classes == ("a", "b", "c")


def test_a_set_of_the_hub_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    division = Division(resolve(tmp_path, "hf:mnist"))
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(DataError, match=r"pip install -e '\.\[hf\]'"):
        division.run  # noqa: B018
    hub(monkeypatch, train=Hub({"a": ("ClassLabel", [0]), "b": ("ClassLabel", [0])}))
    with pytest.raises(DataError, match="has 0 columns of the type Image"):
        division.run  # noqa: B018
    hub(monkeypatch, test=Hub({}))
    with pytest.raises(DataError, match="no split named train"):
        division.run  # noqa: B018


# --- the grammar


@pytest.mark.parametrize(
    ("dataset", "kind", "module"),
    [
        ("file", "file", ""),
        ("torchvision:SVHN", "torchvision", ""),
        ("torchvision:EMNIST:letters", "torchvision", ""),
        ("hf:ylecun/mnist", "hf", ""),
        ("a.b:c", "function", "a.b"),
        ("digits", None, ""),
        ("torchvision:", None, ""),
        ("a.b:", None, ""),
    ],
)
def test_forms(dataset: str, kind: str | None, module: str) -> None:
    assert (kind_of(dataset), module_of(dataset)) == (kind, module)


def test_a_file_and_a_data_set_of_different_layers_the_later_one_counts(tmp_path: Path) -> None:
    config = resolve(tmp_path, text="data.file=/x.npz", experiment="digits-alpha001")
    assert (config.dataset, config.origin["dataset"]) == ("file", "the command line")
    assert config.partition.alpha == 0.01


def test_the_code_of_a_run_is_its_functions_module_and_neither_torchvision_nor_the_hub(
    tmp_path: Path,
) -> None:
    plain = set(code_files(resolve(tmp_path)))
    for dataset in ("torchvision:SVHN", "hf:mnist"):
        assert set(code_files(resolve(tmp_path, dataset))) == plain
    more = set(code_files(resolve(tmp_path, "image_folders:paint"))) - plain
    assert "image_folders: image_folders.py" in more
    assert all(name.startswith("image_folders: ") for name in more)
