"""Whether the settings of a data set of one's own hold together: file, form, sites' folders, and what leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common.config.consistency import FILE_KEY, SITES_KEY
from common.config.keys import Leaf
from common.config.layers import Layer, dataset_layer, kind_layer, merge
from common.config.problems import show, where_phrase
from common.errors import ConfigError
from common.settings.datasets import (
    FILE,
    FOLDERS,
    FORMS,
    TABLE_ENDING,
    is_somebodys_own,
    kind_of,
)

_IMPLIED = {FILE_KEY: FILE, "images.folder": FOLDERS, SITES_KEY: FOLDERS}
"""The data set that a place of one's own implies."""


def chosen_by_file(layers: Sequence[Layer]) -> list[Layer]:
    """Return the layers with what ``data.file``, ``images.folder`` and ``images.sites`` imply of ``dataset``.

    Where a later layer chooses another data set, the file or folder of an earlier one is dropped.
    """
    found = list(layers)
    for key, implied in _IMPLIED.items():
        found = _chosen_by(key, implied, found)
    return found


def _chosen_by(key: str, implied: str, layers: list[Layer]) -> list[Layer]:
    leaves = merge(layers)
    place, dataset = leaves.get(key), leaves.get("dataset")
    if place is None or not place.value:
        return layers
    if dataset is None:
        return [*layers, Layer(place.where, {"dataset": implied})]
    if _takes(key, str(dataset.value)) or dataset.where == place.where:
        return layers
    order = [layer.where for layer in layers]
    if order.index(place.where) > order.index(dataset.where):
        return [*layers, Layer(place.where, {"dataset": implied})]
    return [*layers, Layer(dataset.where, {key: ""})]


def _takes(key: str, dataset: str) -> bool:
    """Whether a data set is one of a file, or of folders: any name that is not a public set's."""
    if key == FILE_KEY:
        return dataset == FILE
    return is_somebodys_own(dataset) and not kind_of(dataset)


def dataset_of_ones_own(leaves: Mapping[str, Leaf], dataset: str, where: str) -> Layer | None:
    """Return the layer of a data set that has no file in ``conf/dataset``, None for a name.

    It is that of a folder of images: sizes for some hundred or thousand pictures, whatever form they come in. Of a
    table, which a .csv file is, or of series it is theirs.

    Raises
    ------
    ConfigError
        If the name has a colon, as the forms have, and is none of them.
    """
    if kind := kind_of(dataset):
        return kind_layer(_arrays(leaves, kind)) or dataset_layer(FOLDERS, where)
    if ":" in dataset:
        others = ", ".join(f"{form.written}" for form in FORMS.values() if ":" in form.written)
        raise ConfigError(f"dataset={show(dataset)} {where_phrase(where)} must be one of {others}.")
    return None


def _arrays(leaves: Mapping[str, Leaf], kind: str) -> str:
    """Return what the arrays of a set are, as it is stated or as its file's name says."""
    stated, file = leaves.get("data.kind"), leaves.get(FILE_KEY)
    if stated is not None:
        return str(stated.value)
    table = kind == FILE and file is not None and str(file.value).endswith(TABLE_ENDING)
    return "table" if table else "images"
