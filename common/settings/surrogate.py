"""Settings of a server that learns from the sites' small image sets: FedDM's, and REAL's."""

from typing import Literal

from common.settings.base import Settings, setting
from common.settings.global_models import GlobalModelsSettings


class UnionTrainingSettings(Settings):
    """Server training on the union of the received sets, inside a ball around the round's start."""

    ipc: int = setting(
        10,
        "images a site sends per class it holds; of a class with fewer real ones, and begun from those, as many",
        symbol="ipc",
        ge=1,
        amount="ipc",
    )
    server_lr: float = setting(0.01, "learning rate of the server's SGD", symbol="eta_s", gt=0)
    server_momentum: float = setting(
        0.9, "momentum of the server's SGD", source="third-party releases of FedDM", ge=0, lt=1
    )
    server_weight_decay: float = setting(0.0, "weight decay of the server's SGD", ge=0)
    server_batch: int = setting(256, "received images a server step", ge=1)
    server_epochs: int = setting(
        500, "the server's passes over the images it trains on a round", ge=0
    )
    server_steps: int = setting(
        0, "server steps a round in place of passes, whatever it keeps; 0: by server_epochs", ge=0
    )
    rho: float = setting(
        5.0,
        "radius of the ball around the round's weights: draws and server steps",
        symbol="rho",
        gt=0,
    )
    weighting: Literal["uniform", "counts"] = setting(
        "uniform", "weight of a received image: one (Eq. 10), or the real images it stands for"
    )
    keep: int = setting(1, "rounds whose sets the server trains on; 0: all so far", ge=0)


class SurrogateServerSettings(GlobalModelsSettings, UnionTrainingSettings):
    """The same, and models of other architectures that the server learns of the union beside the run's own."""
