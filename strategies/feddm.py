"""FedDM on the server: send w_r, receive distilled sets, train on their union (Algorithm 1, server part)."""

from __future__ import annotations

from common.run import Run
from common.settings.feddm import FedDMSettings
from strategies.surrogate import SurrogateServer


class FedDM(SurrogateServer):
    """The mathematics is the device's; what the server does with the sets is SurrogateServer's."""

    phase = "synthesize"

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        assert isinstance(self.settings, FedDMSettings)
        self.ipc = self.settings.ipc
