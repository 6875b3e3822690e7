"""FedAvg's settings (McMahan et al., 2017), with the values of the FedDM paper's comparison."""

from typing import Literal

from common.settings.base import setting
from common.settings.disclosure import Disclosure
from common.settings.training import SGDSettings


class FedAvgSettings(SGDSettings):
    """Sites train the model by SGD; the server averages what comes back."""

    weighting: Literal["counts", "uniform"] = setting(
        "counts", "a site's weight in the average: its number of images, or one"
    )

    def disclosure(self) -> Disclosure:
        """State what leaves a device."""
        return Disclosure("weights", update=True)
