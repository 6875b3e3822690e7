"""Whether the settings of a data set of one's own hold together: file, form, sites' folders, and what leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common.config.consistency import FILE_KEY
from common.config.keys import Leaf
from common.config.layers import Layer, dataset_layer, kind_layer, merge
from common.config.problems import show, where_phrase
from common.errors import ConfigError
from common.settings.datasets import FILE, FOLDERS, FORMS, TABLE_ENDING, kind_of


def chosen_by_file(layers: Sequence[Layer]) -> list[Layer]:
    """Return the layers with what ``data.file`` implies, ``dataset=file``.

    Where a later layer chooses another data set, the file of an earlier one is dropped.
    """
    leaves = merge(layers)
    file, dataset = leaves.get(FILE_KEY), leaves.get("dataset")
    if file is None or not file.value:
        return list(layers)
    if dataset is None:
        return [*layers, Layer(file.where, {"dataset": FILE})]
    if dataset.value == FILE or dataset.where == file.where:
        return list(layers)
    order = [layer.where for layer in layers]
    if order.index(file.where) > order.index(dataset.where):
        return [*layers, Layer(file.where, {"dataset": FILE})]
    return [*layers, Layer(dataset.where, {FILE_KEY: ""})]


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
