"""What part of an update a compression rate leaves, the same on the server and on the devices."""

from __future__ import annotations

from common.errors import ConfigError
from common.learning.run import Run
from common.learning.task import length
from common.settings.masking import MaskingSettings
from common.settings.topk import TopKSettings
from common.wire.top_k_update import MaskedUpdateSpec, TopKUpdateSpec, k_for, largest_rate


def masked_spec(run: Run) -> MaskedUpdateSpec:
    """Return the form of what a run's devices send under random masking, or raise ConfigError."""
    settings, total = run.settings(MaskingSettings), length(run.spec)
    # What is kept is multiplied by the rate, which can take a variance below 0, where the model gives no number.
    if settings.rate > 1 and any(name.endswith("running_var") for name in run.spec.names):
        raise ConfigError(
            f"masking.rate={settings.rate:g} scales the changes that it keeps, and running variances could become "
            "negative: choose model.norm=instance, group or none, or a model of your own without batch norm."
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
