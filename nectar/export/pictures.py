"""Read a picture as the model's training images were: Pillow and NumPy suffice.

`nectar export` copies this module and the decoder into the exported pictures.py, so what stands here may import
nothing of Nectar's but the decoder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from common.data.folders.decode import read_image

if TYPE_CHECKING:
    from common.settings.images import ImagesSettings

BESIDE = Path(__file__).resolve().parent
"""The exported folder, where this module lies in it."""


@dataclass(frozen=True)
class Form:
    """What the decoder must know of the images, as the run's settings of these names."""

    size: int
    channels: int
    bits: int
    page: str
    white: int


def read(path: Path | str, folder: Path = BESIDE) -> Tensor:
    """Return a picture's raw values [C, H, W], float32, for ``normalise``.

    They lie on the whole steps from 0 to model.json's scale that the training images have: 255 for bytes, 16 for
    scikit-learn's digits.

    Raises
    ------
    Unreadable
        If it is no picture, or a damaged one; the message says which.
    """
    about: dict[str, Any] = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    channels, side, _ = about["input"]["shape"]
    scale = about["input"]["scale"]
    page, white = about["input"].get("page", ""), about["input"].get("white", 0)
    form = Form(side, channels, 16 if scale > 255 else 8, page, white)
    values = read_image(Path(path), cast("ImagesSettings", form)).astype(np.float32)
    top = 65535 if form.bits == 16 else 255
    return torch.from_numpy((values * np.float32(scale) / np.float32(top)).round())
