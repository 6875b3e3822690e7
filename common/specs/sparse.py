"""Updates of which a part is sent, the same on the server and at the sites: by a rate, or as factors of a low rank."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from common.errors import ConfigError
from common.learning.run import Run
from common.learning.task import length
from common.settings.fedavg import LowRankSettings, MaskingSettings, TopKSettings
from common.wire.sparse import MaskedUpdateSpec, TopKUpdateSpec, k_for, largest_rate
from common.wire.weights import Weights, WeightsSpec
from synth.sparse_updates import rank_of


def masked_spec(run: Run) -> MaskedUpdateSpec:
    """Return the form of what a run's devices send under random masking, or raise ConfigError."""
    settings, total = run.settings(MaskingSettings), length(run.spec)
    # What is kept is multiplied by the rate, which can take a variance below 0, where the model gives no number.
    if settings.rate > 1 and any(name.endswith("running_var") for name in run.spec.names):
        raise ConfigError(
            f"masking.rate={settings.rate:g} scales the changes that it keeps, and running variances could become "
            "negative: choose model.norm=instance, group or none, or your own model without batch norm."
        )
    if settings.rate > total:
        raise ConfigError(
            f"masking.rate={settings.rate:g} leaves less than one of the model's {total} numbers: the largest "
            f"possible rate is {total}."
        )
    return MaskedUpdateSpec(total, settings.rate)


def top_k_spec(run: Run) -> TopKUpdateSpec:
    """Return the form of what a run's devices send under top-k, or raise ConfigError."""
    settings, total = run.settings(TopKSettings), length(run.spec)
    k = k_for(total, settings.rate, settings.values)
    if k:
        return TopKUpdateSpec(total, k)
    most = largest_rate(total, settings.values)
    asked = f"topk.rate={settings.rate:g} leaves no room for one of the model's {total} numbers and its place"
    if most < 1:
        raise ConfigError(f"{asked}, and no rate would: take a larger model.")
    raise ConfigError(f"{asked}: the largest possible rate is {most:.3f}.")


LEFT, RIGHT = ".left", ".right"
"""What a parameter's factors are called after its name."""


def ranks_of(run: Run) -> dict[str, int]:
    """Return how many columns the factors of a parameter have, by its name, of those that are sent as factors."""
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
    """Return the update that factors represent, float64 by name; integers are the site's last values."""
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
