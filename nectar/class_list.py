"""The class list of folders of images that a simulation reads, where the words give none: their folders' names."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from common.config.loading import load
from common.config.own_parts import Judge
from common.config.resolved import Config
from common.config.text import scalar_text
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
    names = _folders_of_classes(config)
    if not names or any("," in name for name in names):
        return dict(run_config)
    word = f"{CLASSES_KEY}={scalar_text(','.join(names))}"
    return {**run_config, "set": f"{run_config.get('set', '')} {shlex.quote(word)}".strip()}


def _folders_of_classes(config: Config) -> list[str]:
    from common.data.folders.folder import class_folders

    folders = list(config.images.site_folders)
    if config.images.folder:
        folders.append(config.data_dir / Path(config.images.folder).expanduser())
    return sorted({name for folder in folders for name in class_folders(folder)})
