"""FedMix's settings (Yoon et al., 2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.settings.base import Disclosure, setting
from common.settings.fedavg import FedAvgSettings

if TYPE_CHECKING:
    from common.settings.sections import PrivacySettings


class FedMixSettings(FedAvgSettings):
    """Sites train with mixup against means of other sites' images, to first order."""

    sends = Disclosure("weights and means of images", images=True, labels=True, update=True)

    mix: float = setting(
        0.05, "share of the means in a mixture", symbol="lambda", source="Yoon et al.", ge=0, lt=1
    )
    mean_of: int = setting(
        10, "images behind each mean that leaves a site; the rest gives none", symbol="M_k", ge=2
    )
    means: int = setting(100, "most means that a site sends", ge=1)

    def unprotected(self, privacy: PrivacySettings) -> str:
        """Refuse what no noise covers: means of a few images each."""
        return f"each site sends means of {self.mean_of} of its images, which no noise is put on"
