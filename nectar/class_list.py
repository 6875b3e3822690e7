"""The class list of folders of images that a simulation reads, where the words give none: their folders' names."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from common.config.loading import load
from common.config.own_parts import Judge
from common.config.text import scalar_text
from common.errors import ConfigError
from common.settings.datasets import kind_of
from nectar.words import RunConfig

CLASSES_KEY = "images.classes"


def with_class_list(
    run_config: Mapping[str, str | int | float | bool], judge: Judge | None = None
) -> RunConfig:
    """Return ``run_config``; where it names folders of images but not their classes, with the classes stated.

    For a simulation alone: all its processes are then told the list. Real sites must agree on one before they read
    anything, so a run on them states it itself. What is named by import path is put before ``judge`` first.

    Raises
    ------
    ConfigError
        If the configuration is not valid.
    """
    config = load(run_config, judge=judge)
    images = config.images
    if images.classes or kind_of(config.dataset) or not (images.folder or images.sites):
        return dict(run_config)
    folders = [*images.site_folders]
    if images.folder:
        folders.append(config.data_dir / Path(images.folder).expanduser())
    names = sorted({name for folder in folders for name in _classes_in(folder)})
    word = f"{CLASSES_KEY}={scalar_text(','.join(names))}"
    return {**run_config, "set": f"{run_config.get('set', '')} {shlex.quote(word)}".strip()}


def _classes_in(folder: Path) -> list[str]:
    """Return the names of a folder's classes; ConfigError that says why it has none, or not two."""
    from common.data.folders.folder import TEST, TRAIN, class_folders

    lies = f"{TRAIN}/<class>/* and {TEST[0]}/<class>/*, or <class>/* alone"
    if not folder.is_dir():
        what = (
            f"{folder} is a file: unpack it, and name"
            if folder.exists()
            else f"there is no folder {folder}: name"
        )
        raise ConfigError(f"{what} a folder that holds {lies}{_BELOW}.")
    names = class_folders(folder)
    parts = {name: name.lower() for name in names if name.lower() in (TRAIN, *TEST)}
    if odd := [name for name in parts if class_folders(folder / name)]:
        read = " and ".join(parts[name] for name in odd)
        raise ConfigError(f"{folder} holds {' and '.join(odd)}, read only as {read}: rename them.")
    if not names:
        raise ConfigError(f"{folder} holds no folder a class: put its pictures into {lies}.")
    if comma := next((name for name in names if "," in name), ""):
        raise ConfigError(
            f"{folder} has a class {comma!r}, and a comma ends a class's name: rename the folder."
        )
    deeper = folder / names[0]
    if len(names) == 1 and deeper.is_dir() and class_folders(deeper):
        raise ConfigError(
            f"{folder} holds one folder, with the classes' below it: name {deeper} instead."
        )
    return names


_BELOW = " (a relative one is below data-dir)"
