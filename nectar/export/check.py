"""The last step of an export: what was written, loaded in a fresh interpreter, gives the logits of the run's model."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from common.errors import ConfigError
from common.models import Classifier
from common.samples.dataset import DatasetInfo
from nectar.export.formats import FORMATS

_IMAGES = 4
_PATIENCE = 600.0
_SCRIPT = Path(__file__).with_name("fresh.py")


def check(
    network: Classifier, info: DatasetInfo, folder: Path, formats: Sequence[str]
) -> dict[str, float]:
    """Return how far each format's logits are from those of ``network``, the run's own model on the CPU.

    The largest difference over one batch of random images, as a share of the largest logit or of 1.

    Raises
    ------
    ConfigError
        If the folder does not load without Nectar, or gives other logits.
    """
    shape = (_IMAGES, *info.shape)
    pixels = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    mean, std = (torch.tensor(x, dtype=torch.float64)[:, None, None] for x in (info.mean, info.std))
    with torch.no_grad():
        expected = network.eval()(((pixels - mean) / std).float()).float()
    found = _in_a_fresh_interpreter(folder, pixels, formats)
    apart = {name: _apart(found[name], expected) for name in formats}
    for name, distance in apart.items():
        if not distance <= FORMATS[name].tolerance:
            raise ConfigError(
                f"the exported {FORMATS[name].file} gives other logits than the run's model (they differ by "
                f"{distance:.1e} of the largest; {FORMATS[name].tolerance:.0e} is allowed), so nothing was written: "
                "the model must compute the same for equal images in evaluation mode, whatever the batch"
            )
    return apart


def _apart(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference as a share of the largest logit or of 1; infinity for another shape or NaN."""
    if found.shape != expected.shape:
        return float("inf")
    equal = (found == expected) | (found.isnan() & expected.isnan())
    difference = torch.where(equal, 0.0, (found - expected).abs()).nan_to_num(nan=float("inf"))
    largest = expected[expected.isfinite()].abs().max().item() if expected.isfinite().any() else 1.0
    return difference.max().item() / max(1.0, largest)


def _in_a_fresh_interpreter(
    folder: Path, pixels: Tensor, formats: Sequence[str]
) -> Mapping[str, Tensor]:
    with tempfile.TemporaryDirectory(prefix="nectar-export-") as place:
        given, kept = Path(place, "pixels.safetensors"), Path(place, "logits.safetensors")
        save_file({"pixels": pixels}, given)
        words = [sys.executable, "-I", "-B", _SCRIPT, folder, given, kept, *formats]
        try:
            done = subprocess.run(
                list(map(str, words)),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PATIENCE,
            )
        except subprocess.TimeoutExpired:
            raise ConfigError(
                f"the exported model did not load within {_PATIENCE:.0f} seconds in a fresh interpreter, so nothing "
                "was written"
            ) from None
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise ConfigError(
                f"the exported model does not load in a fresh interpreter without Nectar ({said[-1].strip()}), so "
                "nothing was written: its code must need nothing but what model.json names"
            )
        return load_file(kept)
