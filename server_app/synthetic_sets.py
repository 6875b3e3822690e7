"""The sets that sites sent, kept in a record as they arrived: labelled images by site, in one safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from common.storage import tensor_file
from common.wire.image_codecs import Contrast
from common.wire.images import SyntheticImages

SCHEMA = 1


def save_sets(
    sets: Mapping[str, SyntheticImages],
    server_round: int,
    path: Path,
    contrast: Contrast = "pixels",
) -> None:
    """Write the sets of ``server_round``, and how to look at them, to ``path``, whole or not at all."""
    tensors: dict[str, torch.Tensor] = {}
    for index, images in enumerate(sets.values()):
        tensors[f"{index}.images"] = images.images
        tensors[f"{index}.labels"] = images.labels
    meta = {
        "schema": SCHEMA,
        "round": server_round,
        "sites": list(sets),
        "contrast": contrast,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    tensor_file.save(path, tensors, meta)
