"""The settings of training on all data in one place, the upper bound."""

from common.settings.base import Disclosure
from common.settings.fedavg import FedAvgSettings


class CentralSettings(FedAvgSettings):
    """The server trains on the union of the sites' shares, as many steps a round as they would take together."""

    sends = Disclosure("nothing", update=False)
