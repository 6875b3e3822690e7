"""Load an exported model and feed it: torch and safetensors suffice.

`nectar export` copies this module and the networks' own into the exported model.py, so what stands here may import
nothing of Nectar's but the networks.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from common.models.building import build
from common.models.own import make

MODEL_SCHEMA = 1

HERE = Path(__file__).resolve().parent
"""The exported folder, where this module lies in it."""


def describe(folder: Path = HERE) -> dict[str, Any]:
    """Return model.json: network, settings, classes in order, normalisation, origin; ValueError of another release."""
    about: dict[str, Any] = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    if about["schema"] != MODEL_SCHEMA:
        raise ValueError(f"model.json has schema {about['schema']}, this reads {MODEL_SCHEMA}")
    return about


def load(folder: Path = HERE) -> nn.Module:
    """Return the network with its weights, on the CPU, in evaluation mode.

    It takes normalised images [n, C, H, W] and gives logits [n, classes].
    """
    about = describe(folder)
    channels, height, width = about["input"]["shape"]
    shape, classes, name = (channels, height, width), len(about["classes"]), about["model"]["name"]
    model: nn.Module
    if ":" in name:
        copy = HERE / about["code"]["file"] if folder == HERE and about["code"]["file"] else None
        model = make(_maker(name, copy), name, shape, classes)
    else:
        model = build(**about["model"], shape=shape, classes=classes)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()


def _maker(path: str, copy: Path | None) -> Any:
    """Import what ``package.module:callable`` names, from the copy of its module if there is one."""
    name, _, attribute = path.partition(":")
    if copy is None:
        return getattr(importlib.import_module(name), attribute)
    spec = importlib.util.spec_from_file_location("exported_network", copy)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, attribute)


def normalise(raw: Tensor, folder: Path = HERE) -> Tensor:
    """Return (raw / scale - mean) / std, float32, for raw values [..., C, H, W] from 0 to model.json's scale."""
    given = describe(folder)["input"]
    mean, std = (torch.tensor(given[key], dtype=torch.float64) for key in ("mean", "std"))
    factor, offset = 1 / (given["scale"] * std), -mean / std
    shift, gain = (part.float()[:, None, None].to(raw.device) for part in (offset, factor))
    return torch.addcmul(shift, raw.float(), gain)
