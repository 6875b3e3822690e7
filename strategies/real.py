"""REAL on the server: FedDM's protocol with real images, the strong rival that gives the data away."""

from __future__ import annotations

from common.run import Run
from common.settings.real import RealSettings
from strategies.surrogate import SurrogateServer


class Real(SurrogateServer):
    """Receives ipc real images a class from every device; the server's part is FedDM's own."""

    phase = "draw"

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        assert isinstance(self.settings, RealSettings)
        self.ipc = self.settings.ipc
