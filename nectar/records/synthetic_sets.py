"""The sets that sites sent, read from a record: what `server_app.pictures` wrote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch

from common.errors import FederationError, one_line
from common.storage import tensor_file
from common.storage.tensor_file import TensorFileError
from common.wire.image_codecs import CONTRASTS, Contrast
from common.wire.images import SyntheticImages
from server_app.pictures import SCHEMA


def load_sets(path: Path) -> tuple[int, dict[str, SyntheticImages]]:
    """Return the round and the sets by site: images float32 [n, C, H, W] in the model's normalised space.

    Raises
    ------
    FederationError
        If the file is not there, damaged or another release's.
    """
    with _opened(path) as (tensors, meta):
        sets = {
            str(site): SyntheticImages(tensors[f"{index}.images"], tensors[f"{index}.labels"])
            for index, site in enumerate(meta["sites"])
        }
        return int(meta["round"]), sets


def contrast_of(path: Path) -> Contrast:
    """Return how the sets in ``path`` are to be looked at; those of releases that did not say so, as pixels.

    Raises
    ------
    FederationError
        If the file is not there, damaged or another release's.
    """
    with _opened(path) as (_, meta):
        contrast = meta.get("contrast", "pixels")
        if contrast not in CONTRASTS:
            raise ValueError(f"contrast {contrast!r}, this release knows {', '.join(CONTRASTS)}")
        return cast(Contrast, contrast)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[dict[str, torch.Tensor], dict[str, Any]]]:
    """Yield the tensors and their metadata; any error in reading them becomes a FederationError."""
    try:
        tensors, meta = tensor_file.load(path)
        if meta["schema"] != SCHEMA:
            raise ValueError(f"schema {meta['schema']}, this release reads {SCHEMA}")
        yield tensors, meta
    except (TensorFileError, KeyError, ValueError, TypeError) as error:
        raise FederationError(
            f"the synthetic sets {path} cannot be read: {one_line(str(error))[:300]}"
        ) from None
