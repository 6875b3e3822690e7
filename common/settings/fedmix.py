"""FedMix's settings (Yoon et al., 2021)."""

from common.settings.base import setting
from common.settings.disclosure import Disclosure
from common.settings.fedavg import FedAvgSettings


class FedMixSettings(FedAvgSettings):
    """Sites train on their images mixed, to first order, with means of other sites' images."""

    mix: float = setting(
        0.05, "share of the means in a mixture", symbol="lambda", source="Yoon et al.", ge=0, lt=1
    )
    mean_of: int = setting(
        10, "images behind each mean that leaves a site; the rest gives none", symbol="M_k", ge=2
    )
    means: int = setting(100, "most means that a site sends", ge=1)

    def disclosure(self) -> Disclosure:
        """State what leaves a device."""
        return Disclosure("weights and means of images", labels=True, update=True)
