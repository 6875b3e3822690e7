"""``dataset=hf:NAME``: an image set of the Hugging Face Hub, through flwr-datasets, which is an optional extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.data.bounds import ANYWHERE, Bounds
from common.data.own.items import arrays_of
from common.errors import DataError

_TRAIN = ("train",)
#: as for folders, the first that is there is taken
_TEST = ("test", "val", "validation", "valid")


def read_hub(dataset: str, data_dir: Path, size: int, bounds: Bounds = ANYWHERE) -> dict[str, Any]:
    """Return images and labels by name, downloading what is missing where there is a network.

    Parameters
    ----------
    dataset : str
        ``hf:NAME``, NAME as the hub has it.
    data_dir : Path
        Below which the hub's files are kept.
    size : int
        As in :func:`common.data.own.items.arrays_of`.
    bounds : Bounds
        What this machine lets a run touch; without leave to download, the hub's library is not asked.

    Raises
    ------
    DataError
        If flwr-datasets is not installed, the set cannot be had, or it is no set of images with one label each.
    """
    bounds.may_download(dataset)
    try:
        from flwr_datasets import FederatedDataset
    except ImportError:
        raise DataError(
            f"dataset={dataset} needs the package flwr-datasets: pip install 'nectar-fl[hf]'"
        ) from None
    source = FederatedDataset(
        dataset=dataset.partition(":")[2],
        partitioners={},
        shuffle=False,
        cache_dir=str(data_dir / "huggingface"),
    )
    named: dict[str, Any] = {}
    for part, names in (("train", _TRAIN), ("test", _TEST)):
        split = _first(source, names, dataset, data_dir)
        if split is None and part == "train":
            raise DataError(f"dataset={dataset} has no split named train")
        if split is not None:
            named |= of_split(split, part, size, dataset)
    return named


def _first(source: Any, names: tuple[str, ...], dataset: str, data_dir: Path) -> Any:
    for name in names:
        try:
            return source.load_split(name)
        except ValueError as error:  # flwr-datasets' answer to a split that is not there
            if "not present in the dataset's splits" not in str(error):
                raise _cannot(error, dataset, data_dir) from error
        except Exception as error:  # a network fails in any way it likes
            raise _cannot(error, dataset, data_dir) from error
    return None


def _cannot(error: Exception, dataset: str, data_dir: Path) -> DataError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return DataError(
        f"dataset={dataset} cannot be had ({reason}): it is downloaded to {data_dir / 'huggingface'} where there is a "
        "network"
    )


def of_split(split: Any, part: str, size: int, what: str) -> dict[str, Any]:
    """Return a split's images and labels by name, and the names of its classes.

    Parameters
    ----------
    split : datasets.Dataset
        A column of it is of the type ``Image`` and one of the type ``ClassLabel``; where several are, the one named
        ``image`` or ``label``.
    part : str
        ``train`` or ``test``.
    size : int
        As in :func:`common.data.own.items.arrays_of`.
    what : str
        What a message calls the set.

    Raises
    ------
    DataError
        If there is no such column or more than one.
    """
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
