"""Distribution matching with its settings by keyword, as a test varies them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from synth import distribution_matching, private_matching
from synth.distribution_matching import Embedder, MatchedImages, Matching, class_means
from synth.starts import ClassBatches

#: what a private distillation is given besides
_PRIVATE = {"mechanism", "gaussian", "sample", "generator", "values"}


def distil(*given: Any, generator: Any, real_batch: int, **settings: Any) -> MatchedImages:
    """Distil by ``Matching(**settings)``."""
    return distribution_matching.distil(*given, Matching(**settings), real_batch, generator)


def distil_privately(*given: Any, **settings: Any) -> Tensor:
    """Distil by a ``Matching`` of those of ``settings`` that are its own."""
    beside = {name: settings.pop(name) for name in _PRIVATE & settings.keys()}
    return private_matching.distil_privately(*given, Matching(**settings), **beside)


def matching_loss(
    model: Embedder,
    real_x: Tensor,
    real_y: Tensor,
    syn_x: Tensor,
    syn_y: Tensor,
    *,
    real_precision: torch.dtype = torch.float32,
) -> Tensor:
    """Return Eq. 9: sum_c ||mean h(B_c) - mean h(S_c)||^2 + ||mean z(B_c) - mean z(S_c)||^2.

    Gradients reach ``syn_x`` (and the model, through the synthetic batch), never the real batch.
    """
    real = ClassBatches.plan(real_y, dtype=syn_x.dtype)
    syn = ClassBatches.plan(syn_y, dtype=syn_x.dtype)
    if not torch.equal(real.classes, syn.classes):
        raise ValueError(
            f"a batch of classes {real.classes.tolist()} cannot be matched by one "
            f"of {syn.classes.tolist()}: give both the same classes"
        )
    real_x, syn_x = real_x[real_y.argsort(stable=True)], syn_x[syn_y.argsort(stable=True)]
    cuts = [p.slices if model.couples_samples else (slice(None),) for p in (real, syn)]
    with torch.no_grad():
        target = class_means(model, lambda at: real_x[at], cuts[0], real, real_precision)
    means = class_means(model, lambda at: syn_x[at], cuts[1], syn, torch.float32)
    return (target - means).square().sum()
