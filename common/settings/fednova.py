"""FedNova's settings (Wang et al., 2020)."""

from typing import Literal

from common.settings.base import setting
from common.settings.fedavg import FedAvgSettings


class FedNovaSettings(FedAvgSettings):
    """Sites train by SGD, and what they changed is divided by how far their steps could take them."""

    local_optimizer: Literal["sgd"] = setting(
        "sgd", "what takes the steps: SGD, whose steps the normalizer adds up"
    )
    mu: float = setting(
        0.0, "strength of a pull to the round's weights, as FedProx has it", symbol="mu", ge=0
    )
