"""The figures of an exported model on a folder of pictures, those that its run never saw apart from the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from nectar.export.model import ExportedModel
from nectar.export.scoring import Score, score
from nectar.export.sources import PictureFolder
from nectar.export.split import HELD_OUT, TRAINED, VALIDATION
from nectar.export.table import as_text

_SAID = {
    VALIDATION: "that the run held back for tuning",
    TRAINED: "that the run learned from, which say nothing about others",
}

UNKNOWN = (
    "These are not the pictures of the run, or not all and only those: whether it learned from some of them cannot be "
    "told."
)
"""What is said of a folder that was not recognised, of a run that learned from one."""


def score_by_part(
    exported: ExportedModel,
    pictures: PictureFolder,
    parts: Mapping[str, str],
    device: torch.device,
    *,
    batch: int,
    precision: str = "float32",
) -> dict[str, Score]:
    """Return the figures by part, of the parts that the folder holds pictures of; those held out come first."""
    found = {}
    any_of = next(iter(parts.values()))  # for those that cannot be read, to be told with its own
    for name in (HELD_OUT, VALIDATION, TRAINED):
        of_it = {path for path in pictures.paths if parts.get(path, any_of) == name}
        if of_it:
            batches = pictures.batches(batch, of_it)
            found[name] = score(exported, batches, device, precision)
    return found


def text_of(scores: Mapping[str, Score]) -> str:
    """Return the figures of what was held out in full, and a line for each other part."""
    held = scores.get(HELD_OUT)
    whole = "accuracy unknown: the run held none of these pictures out; give others, or its test pictures"
    if held is not None:
        head, _, rest = as_text(held).partition("\n")
        whole = f"{head} that the run held out\n{rest}"
    lines = [
        f"{scores[name].images} images {said}: accuracy {scores[name].accuracy:.4f}, loss {scores[name].loss:.4f}"
        for name, said in _SAID.items()
        if name in scores
    ]
    return "\n".join([whole, *(["", *lines] if lines else [])])


def as_dict(scores: Mapping[str, Score]) -> dict[str, Any]:
    """Return them as JSON can hold them: what was held out as any score, and each part in short."""
    held = scores[HELD_OUT].to_dict() if HELD_OUT in scores else {}
    short = ("images", "accuracy", "loss")
    parts = {name: {key: made.to_dict()[key] for key in short} for name, made in scores.items()}
    return held | {"parts": parts}
