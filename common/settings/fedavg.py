"""FedAvg's settings (McMahan et al., 2017), with the values of the FedDM paper's comparison."""

from typing import Literal

from common.settings.base import setting
from common.settings.facts import Facts, Given
from common.settings.training import SGDSettings


class FedAvgSettings(SGDSettings):
    """Sites train the model by SGD; the server averages what comes back."""

    weighting: Literal["counts", "uniform"] = setting(
        "counts", "a site's weight in the average: its number of images, or one"
    )


def facts(given: Given) -> Facts:
    """Return what a report says of FedAvg."""
    return Facts(
        "FedAvg",
        ("No training example left a device: weights travelled.",),
        ("The trained weights of every device were sent, and are functions of private data.",),
        carries="weights",
    )
