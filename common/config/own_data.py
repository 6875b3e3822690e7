"""Whether the settings of a data set of one's own hold together: file, form, sites' folders, and what leaves."""

from __future__ import annotations

from collections.abc import Sequence

from common.config.consistency import FILE_KEY
from common.config.layers import Layer, dataset_layer, merge
from common.config.problems import show, where_phrase
from common.errors import ConfigError
from common.settings.datasets import FILE, FOLDERS, FORMS, kind_of


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


def dataset_of_ones_own(dataset: str, where: str) -> Layer | None:
    """Return the layer of a data set that has no file in ``conf/dataset``, None for a name.

    It is that of a folder of images: sizes for some hundred or thousand pictures, whatever form they come in.

    Raises
    ------
    ConfigError
        If the name has a colon, as the forms have, and is none of them.
    """
    if kind_of(dataset):
        return dataset_layer(FOLDERS, where)
    if ":" in dataset:
        others = ", ".join(f"{form.written}" for form in FORMS.values() if ":" in form.written)
        raise ConfigError(f"dataset={show(dataset)} {where_phrase(where)} must be one of {others}.")
    return None
