"""What travels under low-rank updates: two factors of each matrix, and what is left of the state as it is."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from common.learning.run import Run
from common.settings.lowrank import LowRankSettings
from common.wire.weights import Weights, WeightsSpec
from synth.sparse_updates import rank_of

LEFT, RIGHT = ".left", ".right"
"""What a parameter's factors are called after its name."""


def ranks_of(run: Run) -> dict[str, int]:
    """Return how many columns the factors of a parameter have, by its name, of those that travel as factors."""
    rank = run.settings(LowRankSettings).rank
    shapes = dict(zip(run.spec.names, run.spec.shapes, strict=True))
    ranks = {name: rank_of(shapes[name], rank) for name in run.spec.trained}
    return {name: kept for name, kept in ranks.items() if kept}


def factors_spec(run: Run) -> WeightsSpec:
    """Return the form of what a run's sites send."""
    ranks = ranks_of(run)
    parts: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    for name, shape, dtype in zip(run.spec.names, run.spec.shapes, run.spec.dtypes, strict=True):
        if name in ranks:
            parts[name + LEFT] = (shape[0], ranks[name]), dtype
            parts[name + RIGHT] = (math.prod(shape[1:]), ranks[name]), dtype
        else:
            parts[name] = shape, dtype
    shapes, dtypes = zip(*parts.values(), strict=True)
    return WeightsSpec(tuple(parts), shapes, dtypes)


def update_of(sent: Weights, run: Run) -> Mapping[str, Tensor]:
    """Return the update that factors stand for, float64 by name; whole numbers are as the site ended with them."""
    given, ranks = sent.read_only, ranks_of(run)
    update = {}
    for name, shape in zip(run.spec.names, run.spec.shapes, strict=True):
        if name in ranks:
            left, right = (given[name + side].double() for side in (LEFT, RIGHT))
            update[name] = (left @ right.T).view(shape)
        else:
            part = given[name]
            update[name] = part.double() if part.is_floating_point() else part
    return update
