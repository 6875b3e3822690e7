"""Load an exported model and feed it: torch and safetensors suffice.

`nectar export` copies this module and the networks' own into the exported model.py, so what stands here may import
nothing of Nectar's but the networks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from common.models.building import build
from common.models.classifier import Classifier

MODEL_SCHEMA = 1

HERE = Path(__file__).resolve().parent
"""The exported folder, where this module lies in it."""


def describe(folder: Path = HERE) -> dict[str, Any]:
    """Return model.json: the network and its settings, classes in the order of the logits, normalisation, origin.

    Raises
    ------
    ValueError
        If it is another release's.
    """
    about: dict[str, Any] = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    if about["schema"] != MODEL_SCHEMA:
        raise ValueError(f"model.json has schema {about['schema']}, this reads {MODEL_SCHEMA}")
    return about


def load(folder: Path = HERE) -> Classifier:
    """Return the network with its weights, on the CPU, in evaluation mode.

    It takes normalised images [n, C, H, W] and gives logits [n, classes].
    """
    about = describe(folder)
    channels, height, width = about["input"]["shape"]
    model = build(**about["model"], shape=(channels, height, width), classes=len(about["classes"]))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()


def normalise(raw: Tensor, folder: Path = HERE) -> Tensor:
    """Return (raw / scale - mean) / std, float32, for raw values [..., C, H, W] from 0 to model.json's scale."""
    given = describe(folder)["input"]
    mean, std = (torch.tensor(given[key], dtype=torch.float64) for key in ("mean", "std"))
    factor, offset = 1 / (given["scale"] * std), -mean / std
    shift, gain = (part.float()[:, None, None].to(raw.device) for part in (offset, factor))
    return torch.addcmul(shift, raw.float(), gain)
