"""Load an exported folder as somebody without Nectar does, and keep its logits.

Run as ``python -I -B fresh.py FOLDER IN OUT FORMAT...`` in an interpreter of its own, where Nectar is not there.
IN holds ``pixels``, float32 [n, C, H, W] from 0 to 1; OUT gets the logits of each format by its name. The first image
goes through a model alone and the others together, so that a batch of fixed size shows.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

OURS = frozenset({"client_app", "common", "nectar", "server_app", "strategies", "synth"})
"""What an exported folder may not need, though it is installed here."""

Logits = Callable[[Tensor], Tensor]


class Refusal:
    """Makes a module that is installed here as missing as it is elsewhere."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Refuse what is ours, and leave the rest to the finders behind."""
        if name.partition(".")[0] in OURS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def from_safetensors(folder: Path) -> Logits:
    """Return the model that the folder's own model.py loads."""
    sys.path.insert(0, str(folder))
    model = importlib.import_module("model")
    scale = json.loads((folder / "model.json").read_text(encoding="utf-8"))["input"]["scale"]
    network = model.load()

    def logits(pixels: Tensor) -> Tensor:
        values: Tensor = network(model.normalise(pixels * scale))
        return values

    return logits


def from_pt2(folder: Path) -> Logits:
    """Return the program of torch.export."""
    program = torch.export.load(folder / "model.pt2").module()

    def logits(pixels: Tensor) -> Tensor:
        values: Tensor = program(pixels)
        return values

    return logits


def from_onnx(folder: Path) -> Logits:
    """Return the graph in onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(
        str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
    )

    def logits(pixels: Tensor) -> Tensor:
        return torch.from_numpy(session.run(["logits"], {"pixels": pixels.numpy()})[0])

    return logits


READERS = {"safetensors": from_safetensors, "pt2": from_pt2, "onnx": from_onnx}


@torch.no_grad()
def main(words: Sequence[str]) -> None:
    """Load, compute, keep."""
    folder, given, kept, *formats = words
    sys.meta_path.insert(0, Refusal())
    torch.set_num_threads(1)
    pixels = load_file(given)["pixels"]
    found: dict[str, Tensor] = {}
    for name in formats:
        logits = READERS[name](Path(folder))
        parts = [logits(part) for part in (pixels[:1], pixels[1:])]
        found[name] = torch.cat(parts).detach().float().contiguous()
    save_file(found, kept)


if __name__ == "__main__":
    main(sys.argv[1:])
