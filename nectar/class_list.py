"""The class list of folders of images that a simulation reads, where the words give none: their folders' names."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from common.config.loading import load
from common.config.own_parts import Judge
from common.config.text import scalar_text
from common.errors import ConfigError
from common.settings.datasets import is_somebodys_own, kind_of
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
    of_folders = is_somebodys_own(config.dataset) and not kind_of(config.dataset)
    if images.classes or not of_folders or not (images.folder or images.sites):
        return dict(run_config)
    folders = [*images.site_folders]
    if images.folder:
        folders.append(config.data_dir / Path(images.folder).expanduser())
    alone = len(folders) == 1
    names = sorted({name for folder in folders for name in _classes_in(folder, alone=alone)})
    word = f"{CLASSES_KEY}={scalar_text(','.join(names))}"
    return {**run_config, "set": f"{run_config.get('set', '')} {shlex.quote(word)}".strip()}


def _classes_in(folder: Path, *, alone: bool) -> list[str]:
    """Return the names of a folder's classes; ConfigError that says why it has none, or not two though ``alone``."""
    from common.data.folders.folder import TEST, TRAIN, class_folders

    lies = f"{TRAIN}/<class>/* and {TEST[0]}/<class>/*, or <class>/* alone"
    if not folder.is_dir():
        what = "is a file: unpack it, and name" if folder.exists() else "is not there: name"
        raise ConfigError(
            f"{folder} {what} a folder that holds {lies} (a relative one is below data-dir)."
        )
    names = class_folders(folder)
    if not names:
        raise ConfigError(f"{folder} holds no folder a class: put its pictures into {lies}.")
    parts = [name for name in names if name.lower() in (TRAIN, *TEST)]
    if parts == names and all(class_folders(folder / name) for name in parts):
        named = " and ".join(parts)
        raise ConfigError(f"{folder} holds {named}, read only as {named.lower()}: rename them.")
    if comma := next((name for name in names if "," in name), ""):
        raise ConfigError(
            f"{folder} has a class {comma!r}, and a comma ends a class's name: rename the folder."
        )
    deeper = folder / names[0]
    if len(names) == 1 and alone and deeper.is_dir() and class_folders(deeper):
        raise ConfigError(
            f"{folder} holds one folder, with the classes' below it: name {deeper} instead."
        )
    return names
