"""FedAvg's settings (McMahan et al., 2017), with the values of the FedDM paper's comparison."""

from typing import ClassVar, Literal

from common.settings.base import Disclosure, setting
from common.settings.training import TrainingSettings


class FedAvgSettings(TrainingSettings):
    """Sites train the model by SGD; the server averages what comes back."""

    trains_alone: ClassVar[bool] = True

    sends: ClassVar[Disclosure] = Disclosure("weights", update=True)
    """What leaves a device, where no setting decides it; a subclass that sends something else states its own."""

    weighting: Literal["counts", "uniform"] = setting(
        "counts", "a site's weight in the average: its number of images, or one"
    )
    class_weights: Literal["none", "balanced"] = setting(
        "none",
        "balanced: each class counts as much in a site's loss, however many examples it has",
        later=True,
    )
    server_optimizer: Literal["sgd", "adam", "yogi"] = setting(
        "sgd",
        "what takes the server's step along the mean update (Reddi et al., 2021)",
    )
    server_lr: float = setting(
        1.0, "learning rate of the server's step; 1 under sgd takes the mean", symbol="eta_g", gt=0
    )
    server_momentum: float = setting(
        0.0, "momentum of the server's sgd: 0.9 is FedAvgM (Hsu et al., 2019)", ge=0, lt=1
    )
    server_tau: float = setting(
        0.001, "adaptivity of the server's adam and yogi", symbol="tau", gt=0
    )

    def disclosure(self) -> Disclosure:
        """State what leaves a device."""
        return self.sends
