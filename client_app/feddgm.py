"""FedDGM on the device: local training of the surrogate, which may be as deep as the site can bear."""

from __future__ import annotations

from typing import Any

from client_app.fedavg import FedAvgClient
from common.learning.run import Run
from common.settings.feddgm import surrogate_of


class FedDGMClient(FedAvgClient):
    """T_l epochs of SGD from theta_g, as in FedAvg; the run's model is the site's surrogate."""

    def __init__(self, run: Run, site: str, *rest: Any, **named: Any) -> None:
        super().__init__(run.with_model(surrogate_of(run, site)), site, *rest, **named)
