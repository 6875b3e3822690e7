"""FedAF's settings (Wang et al., CVPR 2024): condensed images, soft labels and no averaging."""

from __future__ import annotations

from functools import partial
from typing import Literal

from common.settings.base import Noise, setting
from common.settings.feddm import FedDMSettings

_of_ours = partial(setting, source="not in what we have of the paper: a value of ours")


class FedAFSettings(FedDMSettings):
    """FedDM whose images also match all sites' mean logits; the server learns from these as soft labels too.

    Start, steps and images are FedDM's, and what files say of ``feddm`` holds here too.
    """

    rho: float = setting(5.0, "FedDM's; gamma takes its place here", symbol="rho", gt=0)
    mechanism: Literal["none"] = setting("none", "FedDM's; here nothing has noise")
    counts_noise: Noise = setting(0.0, "FedDM's; here nothing has noise", allowed="0")
    gamma: float = _of_ours(
        0.9,
        "share of the round's weights in those that a step matches at; the rest is a network as it begins, another "
        "one each time",
        symbol="gamma",
        ge=0,
        le=1,
    )
    local_strength: float = _of_ours(
        0.01,
        "weight of the distance between an image's logits and all sites' mean ones of its class",
        symbol="lambda_loc",
        ge=0,
    )
    global_strength: float = _of_ours(
        0.1,
        "weight at the server of the divergence between the model's softened outputs and the sites' soft labels",
        symbol="lambda_glob",
        ge=0,
    )
    temperature: float = _of_ours(
        2.0, "what logits are divided by for soft labels", symbol="tau", gt=0
    )
    directions: int = _of_ours(
        32, "directions along which a step takes the sliced Wasserstein distance", ge=1, le=10_000
    )
    local_epochs: int = _of_ours(
        10,
        "passes over its images in which a site trains the model of its soft labels; 0: the round's own",
        ge=0,
        amount="epochs",
    )
    local_lr: float = _of_ours(0.01, "learning rate of that training", gt=0)
    local_batch: int = _of_ours(64, "images a step of it", ge=1)
