"""Other libraries' sets: the Hugging Face Hub's (``dataset=hf:NAME``) and torchvision's (``torchvision:NAME``)."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common.code.imports import constructor_parameters
from common.data.folders.folder import TEST
from common.data.user.arrays import arrays_of, of_item_sets
from common.errors import ConfigError, DataError, near, one_line, short_reason
from common.storage.limits import ANYWHERE, Bounds

#: what other libraries call a set's parts; as for folders, the first that is there is taken
_PARTS = {"train": ("train", "trainval"), "test": (*TEST, "valid")}


def read_hub(dataset: str, data_dir: Path, size: int, bounds: Bounds = ANYWHERE) -> dict[str, Any]:
    """Return images and labels by name, downloading what is missing where there is a network, or raise DataError."""
    bounds.may_download(dataset)
    try:
        from flwr_datasets import FederatedDataset
    except ImportError:
        raise DataError(
            f"dataset={dataset} needs the package flwr-datasets: `.uv/bin/uv pip install -e '.[hf]'` in Nectar's clone"
        ) from None
    source = FederatedDataset(
        dataset=dataset.partition(":")[2],
        partitioners={},
        shuffle=False,
        cache_dir=str(data_dir / "huggingface"),
    )
    named: dict[str, Any] = {}
    for part in _PARTS:
        split = _first(source, part, dataset, data_dir)
        if split is not None:
            named |= of_split(split, part, size, dataset)
    return named


def _first(source: Any, part: str, dataset: str, data_dir: Path) -> Any:
    for name in _PARTS[part]:
        try:
            return source.load_split(name)
        except Exception as error:  # a network fails in any way it likes
            if "not present in the dataset's splits" not in str(error):  # flwr-datasets' answer
                raise DataError(
                    f"dataset={dataset} cannot be had ({short_reason(error)}): it is downloaded to "
                    f"{data_dir / 'huggingface'} where there is a network"
                ) from error
    return _no_part(part, dataset)


def _no_part(part: str, dataset: str) -> None:
    """Refuse a set without a training part; one without a test part is given one."""
    if part == "train":
        raise DataError(f"dataset={dataset} has no split named {' or '.join(_PARTS[part])}")


def of_split(split: Any, part: str, size: int, what: str) -> dict[str, Any]:
    """Return a split's images and labels by name, and the names of its classes, or raise DataError."""
    image = _column(split, "Image", "image", what)
    label = _column(split, "ClassLabel", "label", what)
    pairs = ((row[image], row[label]) for row in split.select_columns([image, label]))
    images, labels = arrays_of(pairs, len(split), size, f"{what} ({part})")
    return {
        f"{part}_images": images,
        f"{part}_labels": labels,
        "classes": list(split.features[label].names),
    }


def _column(split: Any, kind: str, usual: str, what: str) -> str:
    found = [name for name, feature in split.features.items() if type(feature).__name__ == kind]
    if usual in found:
        return usual
    if len(found) != 1:
        listed = ", ".join(found) or ", ".join(split.features)
        raise DataError(
            f"dataset={what} has {len(found)} columns of the type {kind} ({listed}), not one: write a function of your "
            "own and name it by dataset=package.module:callable"
        )
    return str(found[0])


# ---- torchvision sets ----------------------------------------------------------------------------
# ``dataset=torchvision:NAME``: any of torchvision's image sets, laid out below the data directory as it does.


def read_torchvision(
    dataset: str, data_dir: Path, size: int, bounds: Bounds = ANYWHERE
) -> dict[str, Any]:
    """Return images and labels by name, downloading what is missing where there is a network."""
    _, name, *variant = dataset.split(":")
    bounds.links_inside(data_dir, "data-dir")
    cls = _class(name, dataset)
    splits = {
        part: opened
        for part in ("train", "test")
        if (opened := _open(cls, part, variant, dataset, data_dir, bounds)) is not None
    }
    return _fast(splits) or of_item_sets(splits, size, dataset)


def _class(name: str, dataset: str) -> Any:
    import torchvision.datasets as known  # two seconds, which only a first reading should cost

    cls = getattr(known, name, None)
    if inspect.isclass(cls) and issubclass(cls, known.VisionDataset):
        return cls
    raise ConfigError(
        f"dataset={dataset}: torchvision.datasets has no image set {name}{near(name, known.__all__)}; its page lists "
        "all there are."
    )


def _open(
    cls: Any, part: str, variant: list[str], dataset: str, data_dir: Path, bounds: Bounds
) -> Any:
    """Return the set's training or test part; None for the test part of one that has none."""
    parameters = constructor_parameters(cls)
    if {"train", "split"}.issubset(parameters) != bool(variant):
        raise _variants(cls, dataset)
    choices: list[dict[str, Any]] = [{}] if part == "train" else []
    if "train" in parameters:
        choices = [{"train": part == "train", **({"split": variant[0]} if variant else {})}]
    elif "split" in parameters:
        choices = [{"split": name} for name in _PARTS[part]]
    download = {"download": bounds.download} if "download" in parameters else {}
    data_dir.mkdir(parents=True, exist_ok=True)
    for chosen in choices:
        try:
            return cls(root=data_dir, **download, **chosen)
        except ValueError as error:
            if len(choices) > 1 and "split" in str(error):  # its answer to one that is not there
                continue
            words = ", ".join(f"{key} {value}" for key, value in chosen.items())
            raise DataError(f"dataset={dataset}, {words}: {one_line(str(error))}") from error
        except TypeError as error:
            raise DataError(
                f"dataset={dataset} takes more than a folder and a split ({error}): write your own function and "
                "name it by dataset=package.module:callable"
            ) from error
        except Exception as error:  # a network fails in any way it likes
            bounds.may_download(dataset)
            raise DataError(
                f"dataset={dataset} is not below {data_dir} and cannot be downloaded ({short_reason(error)}): put its "
                "files there as torchvision lays them out, or point data-dir or NECTAR_DATA to a folder that has them"
            ) from error
    return _no_part(part, dataset)


def _variants(cls: Any, dataset: str) -> ConfigError:
    known = getattr(cls, "splits", ())
    if not known:
        return ConfigError(f"dataset={dataset}: this set has no variants, write two words alone.")
    first = ":".join(dataset.split(":")[:2])
    return ConfigError(
        f"dataset={dataset} must name one of its variants, {', '.join(known)}: dataset={first}:{known[0]}."
    )


def _fast(splits: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays of a set that keeps all its images in memory; nothing for any other."""
    named: dict[str, Any] = {}
    for part, items in splits.items():
        images = getattr(items, "data", None)
        labels = getattr(items, "targets", getattr(items, "labels", None))
        if not isinstance(images, np.ndarray | torch.Tensor) or labels is None:
            return {}
        images, labels = np.asarray(images), np.asarray(labels)
        fits = images.ndim in (3, 4) and labels.shape == images.shape[:1]
        if images.dtype != np.uint8 or not fits:
            return {}
        named |= {f"{part}_images": images, f"{part}_labels": labels}
    classes = getattr(splits["train"], "classes", None)
    return named | ({} if classes is None else {"classes": [str(name) for name in classes]})
