"""FedVAE's settings: FedDPMS' training without its sharing."""

from collections.abc import Mapping
from typing import Any, Literal

from common.settings.base import setting
from common.settings.fedavg import FedAvgSettings


class FedVAESettings(FedAvgSettings):
    """Sites train a VAE that classifies, then its encoder and classifier alone; its decoder never leaves them."""

    epochs: int = setting(
        5, "passes over the site's images a round", symbol="E", ge=1, amount="epochs"
    )
    local_optimizer: Literal["sgd", "adam"] = setting(
        "adam", "what takes the steps: torch's SGD, or its Adam with the usual betas"
    )
    lr: float = setting(0.001, "learning rate", symbol="eta", gt=0)
    batch: int = setting(64, "images a step", symbol="B", ge=1)
    lr_decay: float = setting(
        0.5, "factor of the learning rate, every lr_decay_every rounds", gt=0, le=1
    )
    lr_decay_every: int = setting(
        10, "rounds from one decay of the learning rate to the next", ge=1
    )
    vae_weight: float = setting(
        0.05, "weight of the VAE's loss, KL + MSE, beside the cross-entropy", symbol="lambda", ge=0
    )
    squared_error: Literal["sum", "mean"] = setting(
        "sum",
        "the reconstruction's squared error over an image's values: their sum, as the KL is over the code's numbers, "
        "or their mean, beside which the KL leaves a decoder that draws one image of every code",
    )
    kl: Literal["sum", "mean"] = setting(
        "sum",
        "the KL over the code's numbers: their sum, or their mean, as the released code has it beside the mean squared "
        "error",
    )
    preliminary_rounds: int = setting(
        0, "rounds with the VAE's loss; 0: two fifths of all", symbol="T_p", ge=0
    )

    @classmethod
    def needs(cls) -> Mapping[str, Any]:
        """Name the network, whose sizes are the paper's for pictures of 28x28; its tables state those for others."""
        sizes = {"depth": 1, "width": 16, "embedding": 32}
        return {f"model.{key}": value for key, value in {"name": "vae", **sizes}.items()}

    def preliminary(self, rounds: int) -> int:
        """Return T_p of a run of so many rounds: at least 1, so that there is a decoder."""
        return self.preliminary_rounds or max(1, round(0.4 * rounds))
