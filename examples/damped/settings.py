"""Settings of damped."""

from common.settings.base import Disclosure, setting
from common.settings.fedavg import FedAvgSettings


class Settings(FedAvgSettings):
    """Sites train as FedAvg's do and send a share of their update."""

    share: float = setting(0.5, "share of the update that is sent", gt=0, le=1)

    def disclosure(self) -> Disclosure:
        """Return what leaves a site."""
        return Disclosure("part of an update", update=True)
