"""Distribution matching with its settings by keyword, as a test varies them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from synth import distribution_matching, private_matching
from synth.distribution_matching import Distilled
from synth.matching_parts import Matching

#: what a private distillation is given besides
_PRIVATE = {"mechanism", "gaussian", "sample", "generator", "values"}


def distil(*given: Any, generator: Any, real_batch: int, **settings: Any) -> Distilled:
    """Distil by ``Matching(**settings)``."""
    return distribution_matching.distil(*given, Matching(**settings), real_batch, generator)


def distil_privately(*given: Any, **settings: Any) -> Tensor:
    """Distil by a ``Matching`` of those of ``settings`` that are its own."""
    beside = {name: settings.pop(name) for name in _PRIVATE & settings.keys()}
    return private_matching.distil_privately(*given, Matching(**settings), **beside)
