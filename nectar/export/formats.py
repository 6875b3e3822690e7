"""The formats of a model in an exported folder, and what each needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from common.errors import ConfigError

SAFETENSORS = "safetensors"
"""Weights beside the code that builds their network: in every folder whose model has such code."""

EXTRA = "pip install 'nectar-fl[onnx]'"

_RAW = "normalised images [n, C, H, W]: (raw / scale - mean) / std"
_PIXELS = "pixel values [n, C, H, W], float32, from 0 to 1, raw / scale; normalisation is inside"


@dataclass(frozen=True)
class Format:
    """A file that holds the model.

    Attributes
    ----------
    takes : str
        What the model takes in this form.
    tolerance : float
        How far its logits may be from the run's model's, as a share of the largest logit or of 1.
    packages : tuple of str
        What writing and checking it needs beyond what every run does.
    """

    file: str
    takes: str
    tolerance: float
    packages: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return its part of model.json."""
        return {"file": self.file, "input": self.takes}


FORMATS = {
    SAFETENSORS: Format("model.safetensors", _RAW, 1e-5),
    "pt2": Format("model.pt2", _PIXELS, 1e-5),
    "onnx": Format("model.onnx", _PIXELS, 1e-4, ("onnx", "onnxscript", "onnxruntime")),
}

ADDED = tuple(name for name in FORMATS if name != SAFETENSORS)
"""What can be asked for beside the weights."""


def read_formats(text: str) -> tuple[str, ...]:
    """Return the formats that ``text`` names, such as ``onnx,pt2``, each once, in their own order.

    Raises
    ------
    ConfigError
        If one is unknown, or needs a package that is not installed.
    """
    asked = [part.strip() for part in text.split(",")]
    unknown = [name for name in asked if name not in ADDED]
    if unknown:
        raise ConfigError(
            f"--format={text} names {unknown[0]!r}: give {', '.join(ADDED)} or both as {','.join(ADDED)}; "
            "the weights are written as safetensors in any case"
        )
    require_packages(asked)
    return tuple(name for name in ADDED if name in asked)


def require_packages(formats: Sequence[str]) -> None:
    """Refuse a format whose packages are not installed, saying how to install them."""
    for name in formats:
        missing = [package for package in FORMATS[name].packages if find_spec(package) is None]
        if missing:
            raise ConfigError(
                f"--format {name} needs {' and '.join(missing)}, not installed here: {EXTRA}"
            )
