"""Settings of a server that learns from the sites' small image sets: FedDM's, and REAL's."""

from typing import Literal

from common.settings.base import Settings, setting
from common.settings.global_models import GlobalModelsSettings


class UnionTrainingSettings(Settings):
    """What the server trains on, the union of the received sets; how it does is ``image_training``'s."""

    ipc: int = setting(
        10,
        "images a site sends per class it holds; of a class with fewer real ones, and begun from those, as many",
        symbol="ipc",
        ge=1,
        amount="ipc",
    )
    image_weighting: Literal["uniform", "counts"] = setting(
        "uniform", "weight of a received image: one (Eq. 10), or the real images it stands for"
    )
    keep: int = setting(1, "rounds whose sets the server trains on; 0: all so far", ge=0)

    @property
    def trains_on_images(self) -> bool:
        """The server does."""
        return True


class SurrogateServerSettings(GlobalModelsSettings, UnionTrainingSettings):
    """The same, and models of other architectures that the server learns of the union beside the run's own."""
