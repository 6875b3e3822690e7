"""Whether the settings of a data set of one's own hold together: file, form, sites' folders, and what leaves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common.config.layers import Layer, file_layer, merge
from common.config.problems import show, where_phrase
from common.datasets import FILE, FOLDERS, FORMS, is_somebodys_own, kind_of
from common.errors import ConfigError
from common.settings.disclosure import Disclosure
from common.settings.images import ImagesSettings
from common.settings.sections import DataSettings, FederationSettings

FILE_KEY, SITES_KEY = "data.file", "images.sites"

#: the settings of ``images`` that say how files of a folder are read
_OF_FOLDERS = ("folder", "sites", "size", "channels", "bits")


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
        return file_layer("dataset", FOLDERS, where)
    if ":" in dataset:
        others = ", ".join(f"{form.written}" for form in FORMS.values() if ":" in form.written)
        raise ConfigError(f"dataset={show(dataset)} {where_phrase(where)} must be one of {others}.")
    return None


def check_own_data(dataset: str, data: DataSettings, images: ImagesSettings) -> None:
    """Refuse settings of a set of one's own that do not fit together.

    Raises
    ------
    ConfigError
        ``dataset=file`` without ``data.file`` or the reverse, a path that cannot be used, a setting that is another
        kind of set's.
    """
    kind = kind_of(dataset)
    if data.file and kind != FILE:
        raise ConfigError(
            f"{FILE_KEY}={data.file} is a data set of its own and dataset={dataset} another: leave one out."
        )
    if kind == FILE:
        _check_file(data.file)
    if data.size and (kind is None or kind == FILE):
        raise ConfigError(
            f"data.size={data.size} is for sets of pictures (torchvision:, hf:, package.module:callable), not for "
            f"dataset={dataset}{'' if kind else ', whose images have their size: a folder has images.size'}."
        )
    for name in _OF_FOLDERS if kind else ():
        if getattr(images, name) != type(images).model_fields[name].default:
            hint = "; data.size brings pictures to a size" if name == "size" else ""
            raise ConfigError(
                f"images.{name}={getattr(images, name)} is for folders of images, which dataset={dataset} is "
                f"not: leave it out{hint}."
            )


def _check_file(file: str) -> None:
    if not file:
        raise ConfigError(f"dataset=file names no file: set {FILE_KEY}=x.npz.")
    if not file.endswith(".npz"):
        raise ConfigError(f"{FILE_KEY}={file} must be a .npz file of NumPy's (numpy.savez).")
    if not Path(file).is_absolute():
        raise ConfigError(f"{FILE_KEY}={file} must be an absolute path: {Path.cwd() / file}?")


def check_originals(
    method: str, disclosed: Disclosure | None, dataset: str, data: DataSettings
) -> None:
    """Refuse to send pictures that may be somebody's own as they are, unless that is asked for.

    Raises
    ------
    ConfigError
        If real examples leave unchanged, the set is not public, and ``data.send_originals`` is off.
    """
    if disclosed is None or not disclosed.unchanged:
        return
    if is_somebodys_own(dataset) and not data.send_originals:
        raise ConfigError(
            f"method={method} with these settings sends real pictures as they are, and those of dataset={dataset} are "
            "taken for somebody's own: add data.send_originals=on if they may leave, or choose feddm with "
            "feddm.start=noise."
        )


def check_site_folders(images: ImagesSettings, federation: FederationSettings) -> None:
    """Refuse simulated sites' folders that cannot be one a site.

    Raises
    ------
    ConfigError
        A relative path, a folder twice, or another number of them than there are sites.
    """
    folders = images.site_folders
    for folder in folders:
        if not folder.is_absolute():
            raise ConfigError(
                f"{SITES_KEY} names {str(folder)!r}: give absolute paths with commas between them."
            )
        if folders.count(folder) > 1:
            raise ConfigError(
                f"{SITES_KEY} names {folder} twice: each site has a folder of its own."
            )
    if folders and len(folders) != federation.clients:
        raise ConfigError(
            f"{SITES_KEY} names {len(folders)} folders, one a site, and federation.clients={federation.clients}: "
            "leave federation.clients out, or make them equal."
        )
